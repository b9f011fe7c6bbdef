package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// What happens to the command when its lock is lost.
const (
	lostTerm = "term"
	lostKill = "kill"
	lostWarn = "warn"
)

// lockOptions has the values of the command line.
type lockOptions struct {
	socket    string
	noWait    bool
	wait      time.Duration
	shared    bool
	any       bool   // one of the keys, not all
	permits   uint32 // of the semaphore; 0 for a lock
	ttl       time.Duration
	keep      time.Duration
	conflict  int
	killAfter time.Duration
	onLost    string
	quiet     bool

	keys    []string
	command []string
}

const lockLong = `Acquire the lock KEY, run CMD, and release the lock when CMD has ended. If several
KEYs are given, all of them are acquired or none, in an order that prevents deadlocks.
The loss of one counts as the loss of all. With --any, only one of them is acquired: the
first that is free.

With -c it acquires one of N permits of the semaphore KEY instead: up to N such
commands run at once, on all hosts together. All callers have to give the same N. A
semaphore and a lock of the same name are independent.

Without -n or -w it waits indefinitely. CMD runs without a shell, with this command's
input and output, in its own process group, which gets the terminal if there is one.
SIGTERM, SIGINT, SIGHUP and similar signals are forwarded to the group. SIGUSR2 is
ignored, because it is meant for the daemon. The environment of CMD has

  LOCKSIDECAR_KEY      the key that was acquired; several keys are on separate lines
  LOCKSIDECAR_FENCE    the fencing token: a number, larger for each later holder.
                       Pass it to the resource, which can refuse a late holder.
                       The tokens of several keys are on separate lines
  LOCKSIDECAR_SOCKET   the daemon's socket
  TRACEPARENT          as in this command's own environment: a daemon that exports
                       traces adds the wait for the lock to that trace

The lock is released as soon as CMD itself has ended, even if processes that it
started continue. With --keep, it stays taken for at least that time, counted from when it
was acquired; 'locksidecar unlock --fence' releases it earlier.

If the lock is lost while CMD runs (the store or the daemon failed for too long, or an
operator took it away), --on-lost decides what happens:

  term   SIGTERM to the whole process group, SIGKILL after --kill-after; exit 79
  kill   SIGKILL at once; exit 79
  warn   only a message; CMD continues without the lock

If this command is killed with SIGKILL, CMD is killed, too (on Linux), but not the
processes that CMD has started.

`

const lockExample = `  # one at a time on all hosts, waiting for its turn
  locksidecar lock nightly-report -- ./report.sh --all

  # skip it if another one is running
  locksidecar lock -n cache-refresh -- ./refresh.sh || [ $? -eq 75 ]

  # wait for at most a minute; readers share the lock
  locksidecar lock -w 1m -s catalogue -- ./export.sh

  # in a crontab on every host: run it once per period, even if it ends quickly
  locksidecar lock -n -E 0 --keep 10m nightly-report -- ./report.sh

  # at most four of them at a time, on all hosts together
  locksidecar lock -c 4 thumbnails -- ./render.sh

  # two locks at once
  locksidecar lock account/17 account/42 -- ./transfer.sh 17 42

  # one of several
  locksidecar lock --any gpu/0 gpu/1 -- sh -c './train.sh --device "${LOCKSIDECAR_KEY#gpu/}"'

  # a shell, if CMD needs one
  locksidecar lock deploy -- sh -c 'echo "fence $LOCKSIDECAR_FENCE"; make deploy'`

func (m *Main) lockCommand() *cobra.Command {
	o := &lockOptions{conflict: exitTryAgain, killAfter: 5 * time.Second, wait: client.Forever}
	cmd := &cobra.Command{
		Use:     "lock [flags] KEY… -- CMD [ARG…]",
		Short:   "Run a command under a lock",
		Long:    lockLong + exitCodesText,
		Example: lockExample,
		// Flags after -- belong to the command, and --help before it belongs to lock.
		DisableFlagsInUseLine: true,
		Args:                  o.args,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.lock(cmd.Context(), o)
		},
	}
	cmd.ValidArgsFunction = m.completeKeys(&o.socket)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		err = suggested(cmd, err)
		if slices.Contains(m.Args, "--") {
			return usage("%w", err)
		}
		return usage("%w (put -- in front of the command)", err)
	})
	f := cmd.Flags()
	f.BoolVarP(&o.noWait, "no-wait", "n", false, "do not wait: fail at once if the lock is taken")
	f.VarP(durationFlag(&o.wait), "wait", "w",
		"wait for the lock at most this `time`, as in 30s (default: no limit)")
	f.Lookup("wait").DefValue = "" // no bound
	f.BoolVarP(&o.shared, "shared", "s", false,
		"acquire a shared lock: other clients may share it, but none may hold it exclusively")
	f.BoolVar(&o.any, "any", false, "acquire one of the keys: the first that is free")
	f.VarP(&parsedFlag[uint32]{&o.permits, "int", parsePermits}, "permits", "c",
		"acquire a permit of a semaphore that has `N` of them, instead of a lock")
	f.Lookup("permits").DefValue = ""
	f.Var(durationFlag(&o.ttl), "ttl", "`length` of the lease, which is renewed while CMD runs; "+
		"after a crash of this host the lock stays taken for that time (default: the daemon's)")
	f.Lookup("ttl").DefValue = ""
	f.Var(durationFlag(&o.keep), "keep", "shortest `time` for which the lock stays taken once it is "+
		"acquired, even if CMD ends earlier")
	f.Lookup("keep").DefValue = ""
	f.VarP(&parsedFlag[int]{&o.conflict, "int", parseExitCode}, "conflict-exit-code", "E",
		"exit `code` if the lock was not acquired")
	f.Var(durationFlag(&o.killAfter), "kill-after",
		"`time` between SIGTERM and SIGKILL if the lock is lost")
	f.StringVar(&o.onLost, "on-lost", lostTerm,
		"`what` happens to CMD if the lock is lost: term, kill or warn")
	completeWords(cmd, "on-lost", lostTerm, lostKill, lostWarn)
	f.BoolVarP(&o.quiet, "quiet", "q", false,
		"print no message about a lock that was not acquired or was lost")
	socketFlag(cmd, &o.socket)
	return cmd
}

// args reads the keys and the command, and checks all options.
func (o *lockOptions) args(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0 && o.any:
		return usage("put -- between the keys and the command: locksidecar lock --any KEY KEY -- CMD")
	case dash < 0 && len(args) > 1:
		return usage("put -- between the key and the command: locksidecar lock %s -- %s",
			args[0], strings.Join(args[1:], " "))
	case len(args) == 0 || dash == 0:
		return usage("no key is named")
	case dash < 0 || len(args) == dash:
		return usage("no command is named: locksidecar lock %s -- CMD", strings.Join(args, " "))
	case dash > o.maxKeys():
		return usage("%d keys are named; at most %d are allowed", dash, o.maxKeys())
	}
	o.keys, o.command = args[:dash], args[dash:]
	for i, k := range o.keys {
		if err := protocol.CheckKey(k); err != nil {
			return usage("%w", err)
		}
		if slices.Contains(o.keys[:i], k) {
			return usage("duplicate key %s", k)
		}
	}
	return o.checkFlags(cmd)
}

// maxKeys returns how many keys may be named.
func (o *lockOptions) maxKeys() int {
	if o.any {
		return protocol.MaxAny
	}
	return protocol.MaxMany
}

// checkFlags checks the flags for values that are out of range and for contradictions.
func (o *lockOptions) checkFlags(cmd *cobra.Command) error {
	if o.noWait && cmd.Flags().Changed("wait") {
		return usage("-n and -w cannot both be given")
	}
	switch {
	case o.permits > 0 && o.shared:
		return usage("-c and -s cannot both be given: a semaphore has no shared mode")
	case o.permits > 0 && len(o.keys) > 1:
		return usage("-c takes one key: permits of several semaphores are not acquired at once")
	}
	switch {
	case o.keep > 0 && len(o.keys) > 1:
		return usage("--keep takes one key")
	case o.keep > protocol.MaxTTL*time.Millisecond:
		return usage("--keep %v: must be at most a day", o.keep)
	}
	switch o.onLost {
	case lostTerm, lostKill, lostWarn:
	default:
		return usage("--on-lost %s: is none of term, kill, warn", o.onLost)
	}
	if o.ttl < time.Millisecond && cmd.Flags().Changed("ttl") { // the protocol counts milliseconds
		return usage("--ttl %v: must be at least 1ms", o.ttl)
	}
	if o.ttl > protocol.MaxTTL*time.Millisecond {
		return usage("--ttl %v: must be at most a day", o.ttl)
	}
	return nil
}

// acquireArgs returns the arguments of the acquire.
func (o *lockOptions) acquireArgs() client.AcquireArgs {
	a := client.AcquireArgs{Owner: 1, Wait: o.wait, TTL: o.ttl, Permits: o.permits, Keep: o.keep}
	if o.noWait {
		a.Wait = 0
	}
	if o.shared {
		a.Mode = protocol.Shared
	}
	return a
}

// name returns the keys for messages.
func (o *lockOptions) name() string { return strings.Join(o.keys, ", ") }

// label names the command in lists, without its arguments, which may be secret.
func (o *lockOptions) label() string {
	s := strings.ToValidUTF8(filepath.Base(o.command[0]), "?")
	for len(s) > protocol.MaxName {
		s = strings.ToValidUTF8(s[:protocol.MaxName], "")
	}
	return s
}

// parsedFlag is a flag whose text is parsed by a function.
type parsedFlag[T any] struct {
	value *T
	kind  string
	parse func(string) (T, error)
}

func (f *parsedFlag[T]) String() string { return fmt.Sprint(*f.value) }
func (f *parsedFlag[T]) Type() string   { return f.kind }

func (f *parsedFlag[T]) Set(s string) error {
	v, err := f.parse(s)
	if err == nil {
		*f.value = v
	}
	return err
}

// durationFlag returns the flag of a time that is not negative and has a unit.
func durationFlag(d *time.Duration) *parsedFlag[time.Duration] {
	return &parsedFlag[time.Duration]{d, "duration", config.ParseDuration}
}

func parsePermits(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 || n > protocol.MaxPermits {
		return 0, fmt.Errorf("is not a number of permits, 1 to %d", protocol.MaxPermits)
	}
	return uint32(n), nil
}

func parseExitCode(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0, errors.New("is not an exit code, 0 to 255")
	}
	return int(n), nil
}
