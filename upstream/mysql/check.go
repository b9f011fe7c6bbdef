package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// smallestPacket is what the server's max_allowed_packet has to be at least.
const smallestPacket = 1 << 20

// server is what a connection's check found out.
type server struct {
	version  string
	flush    string // innodb_flush_log_at_trx_commit
	binlog   string // log_bin
	sync     string // sync_binlog
	noDelete bool   // the user may not delete rows
}

// durable says whether the server keeps what it has confirmed when its machine
// crashes.
func (v *server) durable() bool {
	return v.flush == "1" && (!isOn(v.binlog) || v.sync == "1")
}

// returns says whether an INSERT can return rows: MariaDB's can since 10.5.
func (v *server) returns() bool {
	var major, minor int
	_, err := fmt.Sscanf(v.version, "%d.%d", &major, &minor)
	return err == nil && strings.Contains(v.version, "MariaDB") && (major > 10 || major == 10 && minor >= 5)
}

// check prepares a new connection and looks at the server and the table behind
// it, before anything else is asked. What fails here is refused, and nothing was
// done.
func (s *Store) check(ctx context.Context, conn driver.Conn) error {
	q := quick{ctx, conn}
	wait := strconv.Itoa(max(1, int(math.Ceil(s.cfg.Timeout.Seconds()))))
	_, err := q.rows("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;" +
		"SET SESSION autocommit=1,sql_mode='STRICT_ALL_TABLES',time_zone='+00:00',lock_wait_timeout=" + wait + ",innodb_lock_wait_timeout=1")
	if err != nil {
		return fmt.Errorf("%w: prepare the session: %w", ErrServer, err)
	}
	v, err := s.look(q)
	if err != nil {
		return err
	}
	if err := s.readClock(q); err != nil {
		return err
	}
	if err := s.checkTable(q, locksTable(s.cfg.Table)); err != nil {
		return err
	}
	if v.noDelete, err = s.checkRights(q); err != nil {
		return err
	}
	if strings.Contains(v.version, "MariaDB") {
		// What is given up by its client is not carried out much later.
		if _, err := q.rows("SET SESSION max_statement_time=" + strconv.FormatFloat(s.cfg.Timeout.Seconds(), 'f', 3, 64)); err != nil {
			return fmt.Errorf("%w: prepare the session: %w", ErrServer, err)
		}
	}
	if err := s.checkPermits(q); err != nil {
		return err
	}
	s.returning.Store(!s.plain && v.returns())
	s.report(v)
	return nil
}

// look says whether a server may be used.
func (s *Store) look(q quick) (*server, error) {
	rows, err := q.rows("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version','read_only','innodb_read_only','super_read_only'," +
		"'max_allowed_packet','log_bin','binlog_format','sync_binlog','innodb_flush_log_at_trx_commit')")
	if err != nil {
		return nil, fmt.Errorf("%w: look at its variables: %w", ErrServer, err)
	}
	vars := map[string]string{}
	for _, r := range rows {
		if len(r) == 2 {
			vars[r[0]] = r[1]
		}
	}
	v := &server{version: vars["version"], flush: vars["innodb_flush_log_at_trx_commit"], binlog: vars["log_bin"], sync: vars["sync_binlog"]}
	if err := rightVersion(v.version); err != nil {
		return nil, err
	}
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if isOn(vars[name]) {
			return nil, fmt.Errorf("%w: %s is ON there: %w", ErrServer, name, errReadOnly)
		}
	}
	if isOn(v.binlog) && vars["binlog_format"] == "STATEMENT" {
		return nil, fmt.Errorf("%w: its binlog_format is STATEMENT, which forbids READ COMMITTED: set binlog_format to ROW or MIXED there", ErrServer)
	}
	if n, err := strconv.Atoi(vars["max_allowed_packet"]); err == nil && n < smallestPacket {
		return nil, fmt.Errorf("%w: its max_allowed_packet is %d: at least %d is needed", ErrServer, n, smallestPacket)
	}
	return v, nil
}

// readClock records the server's clock, which fence bases follow.
func (s *Store) readClock(q quick) error {
	rows, err := q.rows("SELECT " + clock)
	if err != nil {
		return fmt.Errorf("%w: read its clock: %w", ErrServer, err)
	}
	if len(rows) == 1 && len(rows[0]) == 1 {
		if now, err := strconv.ParseInt(rows[0][0], 10, 64); err == nil {
			s.fences.SawClock(now)
		}
	}
	return nil
}

// The oldest servers that have what the statements use. Those that only speak
// as MySQL does have row locks of another kind, or none.
func rightVersion(version string) error {
	for _, other := range []string{"TiDB", "Vitess", "OceanBase"} {
		if strings.Contains(version, other) {
			return fmt.Errorf("%w: it is %s, whose row locks are not InnoDB's", ErrServer, version)
		}
	}
	oldest := [2]int{5, 7}
	if strings.Contains(version, "MariaDB") {
		oldest = [2]int{10, 3}
	}
	var have [2]int
	if _, err := fmt.Sscanf(version, "%d.%d", &have[0], &have[1]); err != nil {
		return nil //nolint:nilerr // a version that cannot be read says nothing
	}
	if have[0] < oldest[0] || have[0] == oldest[0] && have[1] < oldest[1] {
		return fmt.Errorf("%w: its version is %s, at least %d.%d is needed", ErrServer, version, oldest[0], oldest[1])
	}
	return nil
}

// checkRights tries what will be done, on no rows.
func (s *Store) checkRights(q quick) (noDelete bool, err error) {
	table := "`" + s.cfg.Table + "`"
	for _, try := range []string{
		"SELECT " + columns + " FROM " + table + " WHERE 1=0",
		"INSERT INTO " + table + " (" + columns + ") SELECT " + columns + " FROM " + table + " AS other WHERE 1=0 ON DUPLICATE KEY UPDATE version=VALUES(version)",
	} {
		if _, err := q.rows(try); err != nil {
			return false, fmt.Errorf("%w: try what its user may do: %w", ErrServer, err)
		}
	}
	_, err = q.rows("DELETE FROM " + table + " WHERE 1=0")
	if number(err) == erTableDenied {
		return true, nil
	}
	return false, err
}

// report logs what is known of a server when it is news.
func (s *Store) report(v *server) {
	s.seen.Lock()
	defer s.seen.Unlock()
	if s.seen.server != nil && *s.seen.server == *v {
		return
	}
	s.seen.server = v
	log := s.log.With(zap.String("version", v.version), zap.String("addr", s.cfg.Addr()))
	log.Info("connected to mysql")
	if !v.durable() {
		log.Warn("a crash of the server's machine may lose locks that it has confirmed: set innodb_flush_log_at_trx_commit=1, and sync_binlog=1 where log_bin is ON",
			zap.String("innodb_flush_log_at_trx_commit", v.flush), zap.String("log_bin", v.binlog), zap.String("sync_binlog", v.sync))
	}
	if v.noDelete {
		log.Warn("the user may not DELETE: the rows of locks long unused stay in the table", zap.String("table", s.cfg.Table))
	}
}

// quick asks on a connection that is not the pool's yet.
type quick struct {
	ctx  context.Context
	conn driver.Conn
}

// rows returns what query's first set of rows has, as text.
func (q quick) rows(query string) ([][]string, error) {
	c, ok := q.conn.(driver.QueryerContext)
	if !ok {
		return nil, errors.New("the driver cannot query")
	}
	rows, err := c.QueryContext(q.ctx, query, nil)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out [][]string
	vals := make([]driver.Value, len(rows.Columns()))
	for len(vals) > 0 {
		if err := rows.Next(vals); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		r := make([]string, len(vals))
		for i, v := range vals {
			switch v := v.(type) {
			case nil:
			case []byte:
				r[i] = string(v)
			default:
				r[i] = fmt.Sprint(v)
			}
		}
		out = append(out, r)
	}
	return out, nil
}
