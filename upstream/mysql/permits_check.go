package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

func permitsTable(name string) *table {
	create := strings.TrimSpace(strings.NewReplacer("{table}", "`"+name+"`", "{name}", strconv.Itoa(nameLen), "{token}", strconv.Itoa(tokenLen)).Replace(permitsSQL))
	return &table{name: name, of: "permits", create: create, columns: permitsColumns,
		keys: [][3]string{{"PRIMARY", "name", "0"}, {"PRIMARY", "token", "0"}, {"queue", "name", "1"}, {"queue", "place", "1"}}}
}

var permitsColumns = map[string]column{
	"name": {"varbinary", strconv.Itoa(nameLen)}, "token": {"varbinary", strconv.Itoa(tokenLen)},
	"place": {"bigint", ""}, "ends": {"bigint", ""}, "fence": {"bigint", ""}, "most": {"bigint", ""},
	"held": {"bigint", ""}, "waits": {"bigint", ""}, "turn": {"bigint", ""},
}

// checkPermits looks at the table of semaphores, and makes it if it is not there. If it
// cannot be used that is for the ops about permits, and for the log: locks do without
// it, as those of an older locksidecar have done. It fails with the connection.
func (s *Store) checkPermits(q quick) error {
	err := s.checkTable(q, permitsTable(s.cfg.permitsTable()))
	if err == nil {
		err = s.checkPermitRights(q)
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
		s.log.Warn("semaphores cannot be used: their table is not as it has to be", zap.String("table", s.cfg.permitsTable()), zap.Error(err))
	}
	return nil
}

// checkPermitRights tries what will be done, on no rows.
func (s *Store) checkPermitRights(q quick) error {
	table := s.permitsText().table
	for _, try := range []string{
		"INSERT INTO " + table + " (" + permitColumns + ") SELECT " + permitColumns + " FROM " + table + " AS other WHERE 1=0 ON DUPLICATE KEY UPDATE place=VALUES(place)",
		"DELETE FROM " + table + " WHERE 1=0",
	} {
		if _, err := q.rows(try); err != nil {
			return fmt.Errorf("%w: try what its user may do: %w", ErrServer, err)
		}
	}
	return nil
}

// aboutTable says whether err is about the table alone.
func aboutTable(err error) bool {
	return slices.Contains([]uint16{erTableDenied, erColumnDenied, erNoTable, 1054, 1136, 1176}, number(err))
}

// permitsAdvice adds to an error what to look at.
func (s *Store) permitsAdvice(err error) error {
	switch number(err) {
	case erTableDenied, erColumnDenied:
		return fmt.Errorf("%w (the store URL's user needs: GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `%s`.`%s` TO …)", err, s.cfg.Database, s.cfg.permitsTable())
	case erNoTable:
		return fmt.Errorf("%w (dropped while it was in use: the permits in it are gone)", err)
	}
	return err
}

// permitsReady looks at the table again if it could not be used: it may have been
// made meanwhile, or granted.
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
