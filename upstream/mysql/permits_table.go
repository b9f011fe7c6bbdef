package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.uber.org/zap"
)

//go:embed permits.sql
var permitsSQL string

const permitColumns = "name,token,place,ends,fence,most,held,waits,turn"

func permitsTable(name string) *table {
	return &table{name: name, of: "permits", list: permitColumns,
		create: createTable(permitsSQL, name), columns: permitsColumns,
		keys: [][3]string{{"PRIMARY", "name", "0"}, {"PRIMARY", "token", "0"}, {"queue", "name", "1"},
			{"queue", "place", "1"}}}
}

var permitsColumns = map[string]column{
	"name": {"varbinary", strconv.Itoa(nameLen)}, "token": {"varbinary", strconv.Itoa(tokenLen)},
	"place": {"bigint", ""}, "ends": {"bigint", ""}, "fence": {"bigint", ""}, "most": {"bigint", ""},
	"held": {"bigint", ""}, "waits": {"bigint", ""}, "turn": {"bigint", ""},
}

// checkPermits checks the table of semaphores, and makes it if it does not exist. If the table
// cannot be used, ops about permits are refused and the log says so; locks work without it, as in
// older versions of locksidecar. checkPermits fails only with the connection.
func (s *Store) checkPermits(q quick) error {
	t := permitsTable(s.cfg.permitsTable())
	err := s.checkTable(q, t)
	if err == nil {
		denied, failed := checkRights(q, t)
		err = cmp.Or(failed, denied)
	}
	switch {
	case err == nil:
		s.permitsBad.Store(nil)
		return nil
	case number(err) == 0 && !errors.Is(err, ErrServer), isReadOnly(err):
		return err
	}
	err = fmt.Errorf("semaphores cannot be used: %w", s.permitsAdvice(err))
	if was := s.permitsBad.Swap(&err); was == nil || (*was).Error() != err.Error() {
		s.log.Warn("semaphores cannot be used: their table is not as it has to be",
			zap.String("table", s.cfg.permitsTable()), zap.Error(err))
	}
	return nil
}

// aboutTable reports whether err is about the table alone.
func aboutTable(err error) bool {
	return slices.Contains([]uint16{erTableDenied, erColumnDenied, erNoTable, 1054, 1136, 1176},
		number(err))
}

// permitsAdvice adds advice to an error.
func (s *Store) permitsAdvice(err error) error {
	switch number(err) {
	case erTableDenied, erColumnDenied:
		return fmt.Errorf("%w (the store URL's user needs: GRANT SELECT, INSERT, UPDATE, DELETE, "+
			"CREATE ON `%s`.`%s` TO …)", err, s.cfg.Database, s.cfg.permitsTable())
	case erNoTable:
		return fmt.Errorf("%w (dropped while it was in use: the permits in it are gone)", err)
	}
	return err
}

// permitsReady checks the table again if it could not be used: it may exist by now, or the rights
// may have been granted.
func (s *Store) permitsReady(ctx context.Context, conn *sql.Conn) error {
	if s.permitsBad.Load() == nil {
		return nil
	}
	err := conn.Raw(func(c any) error { return s.checkPermits(quick{ctx, c.(driver.Conn)}) })
	if err != nil {
		return s.reason(ErrRefused, err)
	}
	if bad := s.permitsBad.Load(); bad != nil {
		return fmt.Errorf("%w at %s: %w", ErrRefused, s.cfg.Addr(), *bad)
	}
	return nil
}
