package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// Exit codes. They are the codes of sysexits.h where that has one.
const (
	exitOK          = 0
	exitUsage       = 64
	exitNotHeld     = 66
	exitUnavailable = 69
	exitInternal    = 70
	exitCannotMake  = 73
	exitTryAgain    = 75
	exitDenied      = 77
	exitLost        = 79
)

// exitCodesText is a variable and not a constant: the program then contains the text only once.
var exitCodesText = `Exit codes:

    0  done; for lock: the command's own
    1  conformance: a scenario failed
   64  wrong usage, or a configuration with faults
   66  unlock: the lock is not held on this host; who: it is not held at all
   69  no daemon answers at the socket, or the store cannot be reached
   70  an internal error of locksidecar
   73  serve: the socket cannot be made
   75  lock: the lock was not acquired (another code with -E);
       serve: another daemon serves this socket
   77  this user is not allowed to do that
   79  lock: the lock was lost, and so the command was ended
  126  lock: the command cannot be run
  127  lock: the command was not found
  128+n  ended by signal n; for lock: the command was, or lock while it waited
`

// exitCodesTopic returns a help page without a command.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: exitCodesText}
}

// exitError ends the program with an exit code and, optionally, an error message.
type exitError struct {
	code int
	err  error
	hint bool // point to the help
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exit(code int, format string, a ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, a...)}
}

// exitWith returns an exitError with a code and without a message.
func exitWith(code int) error {
	if code == exitOK {
		return nil
	}
	return &exitError{code: code}
}

func usage(format string, a ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, a...), hint: true}
}

// clientExit gives an error of the client its exit code and, if needed, a longer message.
func clientExit(err error, socket string) error {
	var refused *client.Error
	switch {
	case err == nil:
		return nil
	case isAdminSocket(socket):
		locks := strings.TrimSuffix(socket, admin.Socket(""))
		return exit(exitUnavailable, "%s is the daemon's admin socket; use its socket for locks, "+
			"%s",
			socket, locks)
	case errors.Is(err, client.ErrDraining):
		return exit(exitUnavailable, "the daemon at %s is stopping, and grants no new locks", socket)
	case errors.Is(err, syscall.ECONNREFUSED) && !isSocket(socket):
		return exit(exitUnavailable, "no daemon at %s: it is not a socket", socket)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return exit(exitUnavailable, "no daemon at %s; start one with 'locksidecar serve', or "+
			"name its socket with --socket or LOCKSIDECAR_SOCKET", socket)
	case errors.Is(err, fs.ErrPermission):
		return exit(exitDenied, "this user (uid %d) may not connect to %s; 'locksidecar doctor' "+
			"gives advice", os.Geteuid(), socket)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return exit(exitUnavailable, "the daemon at %s does not answer", socket)
	case errors.Is(err, client.ErrBusy), errors.Is(err, client.ErrTimeout),
		errors.Is(err, client.ErrLimit):
		return &exitError{code: exitTryAgain, err: err}
	case errors.Is(err, client.ErrDenied):
		return &exitError{code: exitDenied, err: err}
	case errors.Is(err, client.ErrInvalid):
		return &exitError{code: exitUsage, err: err}
	case errors.Is(err, client.ErrClosed), errors.As(err, &refused):
		return &exitError{code: exitUnavailable, err: err}
	}
	return exit(exitUnavailable, "%s: %w", socket, err)
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeSocket != 0
}

// isAdminSocket reports whether path is the admin socket of a daemon whose socket for locks is
// beside it.
func isAdminSocket(path string) bool {
	locks, found := strings.CutSuffix(path, admin.Socket(""))
	return found && isSocket(path) && isSocket(locks)
}
