package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// The driver's own errors: see package driverkit.
var ErrConfig, ErrServer, ErrNothingSent, ErrNoAnswer, ErrRefused = driverkit.Errors("postgres")

var (
	errReadOnly = errors.New("the server is read-only: " +
		"it is a standby, or its default_transaction_read_only is on")
	errAnswer = errors.New("the answer is malformed")
	errTurns  = errors.New("out of time: the server rolled the batch back each time")
	errLocked = errors.New("another transaction at the server keeps the row of the lock locked")
	// errLocal follows the warning that a commit did not wait for its synchronous standbys. The
	// change is made, but a failover may lose it.
	errLocal = errors.New("the server stopped waiting for its synchronous standbys")
	errFull  = fmt.Errorf("more than %d hosts hold this lock or wait for it", maxEntries)
	errUsed  = errors.New("fence bases are used up")
)

// The server's error codes (SQLSTATE) that the store distinguishes.
const (
	codeReadOnly      = "25006"
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeOutcome       = "40003" // statement completion unknown
	codeLocked        = "55P03"
	codeLimit         = "54000" // also that the queue of notifications is full
	codeCanceled      = "57014"
	codeNoPrivilege   = "42501"
	codeNoTable       = "42P01"
	codeNoFunction    = "42883"
	codeNoType        = "42704"
	codeNoSchema      = "3F000"
	codeNoDatabase    = "3D000"
)

// repeatable has the errors after which the whole batch has been rolled back and should be
// repeated.
var repeatable = []string{codeSerialization, codeDeadlock}

// dropped has the errors that mean that our table, type or function is gone.
var dropped = []string{codeNoTable, codeNoFunction, codeNoType, codeNoSchema}

// downClasses has the first two characters of errors that every request would get now.
var downClasses = []string{"08", "28", "3D", "53", "57", "58", "XX"}

// harmless has the server's functions whose warnings do not concern the commit of a batch. They
// warn that transaction ids will be used up, or that the queue of notifications is half full.
var harmless = []string{"GetNewTransactionId", "asyncQueueFillWarning"}

func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// rolledBack reports whether err is the server's answer that the transaction was rolled back. After
// an error that ends the connection (FATAL, PANIC) that is not certain. Neither is it if a pooler
// says that it has lost its connection to the server (class 08), or does not know the outcome.
func rolledBack(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR" && e.Code != codeOutcome &&
		!strings.HasPrefix(e.Code, "08")
}

// isDown reports whether an error is about the whole store and not about one request.
func isDown(err error) bool {
	if c := code(err); c != "" {
		return c == codeReadOnly || c == codeNoPrivilege || slices.Contains(dropped, c) ||
			slices.Contains(downClasses, c[:min(2, len(c))]) && c != codeCanceled
	}
	return !slices.ContainsFunc([]error{errTurns, errLocked, errFull, errUsed}, func(one error) bool {
		return errors.Is(err, one)
	})
}

// reason adds advice to an error, and ErrDown if the whole store is down.
func (s *Store) reason(what, err error) error {
	err = s.advice(err)
	down := isDown(err)
	if err = fmt.Errorf("%w at %s: %w", what, s.cfg.Addr(), err); down {
		return driverkit.Down(err)
	}
	return err
}

// advice adds the settings to check to an error.
func (s *Store) advice(err error) error {
	c := code(err)
	switch {
	case c == codeReadOnly:
		return fmt.Errorf("%w: %w", errReadOnly, err)
	case c == codeNoDatabase:
		return fmt.Errorf("%w (check the database in the store URL's path)", err)
	case c == codeNoPrivilege:
		return fmt.Errorf("%w (the store URL's user lacks a right; %s)", err, s.names.grants())
	case slices.Contains(dropped, c):
		return fmt.Errorf("%w (dropped while it was in use: the locks in it are gone)", err)
	case len(c) == 5 && c[:2] == "28":
		return fmt.Errorf("%w (check the store URL's user and password, password_file=, tls= "+
			"and the server's pg_hba.conf)", err)
	}
	return err
}

// connecting adds advice to an error of making a connection.
func (s *Store) connecting(err error) error {
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case code(err) != "":
	case driverkit.TLSAdvice(err) != "":
		return fmt.Errorf("%w%s", err, driverkit.TLSAdvice(err))
	case errors.Is(err, context.DeadlineExceeded), ok && timeout.Timeout():
		return fmt.Errorf("%w: no answer within %v (timeout= in the store URL; is it a "+
			"PostgreSQL server?)",
			err, s.cfg.Timeout)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: the server closed the connection (is it a PostgreSQL server?)", err)
	}
	return err
}
