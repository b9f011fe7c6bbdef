package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// The driver's own errors: see package driverkit.
var ErrConfig, ErrServer, ErrNothingSent, ErrNoAnswer, ErrRefused = driverkit.Errors("mysql")

var errReadOnly = errors.New("the server is read-only now (read_only, super_read_only or " +
	"innodb_read_only): it is not the primary, or not any more")

// errOutOfTime ends ops that did not get their turn in time, at a server that answers.
var errOutOfTime = errors.New("out of time: other hosts changed the row each time in between")

// The error numbers of the server that the store distinguishes.
const (
	erAccessDenied     = 1045
	erDBAccessDenied   = 1044
	erBadDB            = 1049
	erTableDenied      = 1142
	erColumnDenied     = 1143
	erNoTable          = 1146
	erLockWait         = 1205
	erDeadlock         = 1213
	erChanged          = 1020
	erOption           = 1290
	erReadOnlyTrx      = 1792
	erReadOnlyMode     = 1836
	erSecureTransport  = 3159
	erSecureTransport2 = 4031
)

var (
	readOnly = []uint16{erOption, erReadOnlyMode, erReadOnlyTrx, 3100, 3101}

	// repeatable has the errors after which the statement has been rolled back and should be
	// repeated.
	repeatable = []uint16{erDeadlock, erChanged}

	// nothingDone has the errors with which a server refuses a statement or rolls it back.
	nothingDone = []uint16{erDeadlock, erChanged, erLockWait,
		1021, 1041, 1037, 1038, 1114, 1118, 1153, 1206, // no room
		1036, 1099, 1223, 1227, // the table or server is read-only
		erDBAccessDenied, erTableDenied, erColumnDenied, 1226, 1370, 1820, 1862, // missing rights
		// The table or the server is of another kind.
		1046, 1048, erBadDB, 1051, 1054, 1064, 1109, 1136, 1146, 1264, 1305, 1364, 1366, 1406, 1690,
		1665, // the binary log's format
	}

	// downNumbers has the errors that every request would get.
	downNumbers = []uint16{1040, 1129, 1130, 1203, 1226, erAccessDenied, erDBAccessDenied, erBadDB,
		erTableDenied, erColumnDenied, erNoTable, erSecureTransport, erSecureTransport2, 1021, 1114,
		1036, 1053, 1099, 1223, 1665, 1820, 1862}
)

func number(err error) uint16 {
	if e, ok := errors.AsType[*gomysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

func isReadOnly(err error) bool {
	return errors.Is(err, errReadOnly) || slices.Contains(readOnly, number(err))
}

// proves reports whether an error of the write means that it has done nothing.
func proves(err error) bool { return isReadOnly(err) || slices.Contains(nothingDone, number(err)) }

// isDown reports whether an error is about the whole store and not about one request.
func isDown(err error) bool {
	if n := number(err); n != 0 {
		return isReadOnly(err) || slices.Contains(downNumbers, n)
	}
	return !errors.Is(err, errOutOfTime) // no answer, or none that makes sense
}

// nothingSent reports whether err proves that not a byte was written.
func nothingSent(err error) bool { return errors.Is(err, driver.ErrBadConn) }

// reason adds advice to an error, and whether the whole store is down.
func (s *Store) reason(what, err error) error {
	err = s.advice(err)
	if isDown(err) {
		return fmt.Errorf("%w: %w at %s: %w", upstream.ErrDown, what, s.cfg.Addr(), err)
	}
	return fmt.Errorf("%w at %s: %w", what, s.cfg.Addr(), err)
}

// advice adds the settings to check to an error.
func (s *Store) advice(err error) error {
	grant := fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `%s`.`%s` TO …",
		s.cfg.Database, s.cfg.Table)
	switch number(err) {
	case erAccessDenied:
		return fmt.Errorf("%w (look at the store URL's user and password, and password_file=)", err)
	case erBadDB, erDBAccessDenied:
		return fmt.Errorf("%w (look at the database in the store URL's path, and at what its "+
			"user may do there)", err)
	case erTableDenied, erColumnDenied:
		return fmt.Errorf("%w (the store URL's user needs: %s)", err, grant)
	case erNoTable:
		return fmt.Errorf("%w (dropped while it was in use: the locks in it are gone)", err)
	case erSecureTransport, erSecureTransport2:
		return fmt.Errorf("%w (the server wants TLS: tls=true in the store URL)", err)
	}
	switch {
	case isReadOnly(err) && !errors.Is(err, errReadOnly):
		return fmt.Errorf("%w: %w", errReadOnly, err)
	case errors.Is(err, gomysql.ErrNoTLS):
		return fmt.Errorf("%w (the store URL says tls=true)", err)
	case errors.Is(err, gomysql.ErrPktSync), errors.Is(err, gomysql.ErrMalformPkt),
		errors.Is(err, gomysql.ErrOldProtocol), errors.Is(err, gomysql.ErrPktTooLarge):
		return fmt.Errorf("%w (what answers there does not speak as a MySQL or MariaDB server "+
			"does: look at the store URL's host and port)", err)
	}
	return err
}

// connecting adds advice to an error of making a connection.
func (s *Store) connecting(err error) error {
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), ok && timeout.Timeout():
		return fmt.Errorf("%w: nothing is said there within %v (timeout= in the store URL; is it "+
			"a MySQL or MariaDB server?)", err, s.cfg.Timeout)
	case errors.Is(err, io.EOF), errors.Is(err, gomysql.ErrInvalidConn),
		errors.Is(err, driver.ErrBadConn):
		return fmt.Errorf("%w: the connection is closed before anything is said (is it a MySQL "+
			"or MariaDB server?)", err)
	}
	return err
}
