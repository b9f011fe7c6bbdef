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

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// smallestPacket is the minimum of the server's max_allowed_packet.
const smallestPacket = 1 << 20

// clock is the server's time in µs since 1970, in UTC whatever the time zones of the server and the
// session. It is the time at which its statement began.
const clock = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"

// readOnlyFlags are variables that are on if the server must not be written to. The server does not
// keep privileged users from writing to it.
const readOnlyFlags = "@@global.read_only,@@global.innodb_read_only"

func isOn(flag string) bool { return flag != "0" && flag != "OFF" && flag != "" }

// server has the findings of the check of a connection.
type server struct {
	version  string
	flush    string // innodb_flush_log_at_trx_commit
	binlog   string // log_bin
	sync     string // sync_binlog
	noDelete bool   // the user may not delete rows
}

// durable reports whether the server keeps what it has confirmed when its machine crashes.
func (v *server) durable() bool {
	return v.flush == "1" && (!isOn(v.binlog) || v.sync == "1")
}

// returns reports whether an INSERT can return rows, as in MariaDB since 10.5.
func (v *server) returns() bool {
	have, ok := driverkit.ParseVersion(v.version)
	return ok && strings.Contains(v.version, "MariaDB") && !have.Before(driverkit.Version{10, 5})
}

// check prepares a new connection, and checks the server and its tables before any other request.
// Its errors mean that nothing was done.
func (s *Store) check(ctx context.Context, conn driver.Conn) error {
	q := quick{ctx, conn}
	wait := strconv.Itoa(max(1, int(math.Ceil(s.cfg.Timeout.Seconds()))))
	_, err := q.rows("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;" +
		"SET SESSION autocommit=1,sql_mode='STRICT_ALL_TABLES',time_zone='+00:00',lock_wait_timeout=" +
		wait + ",innodb_lock_wait_timeout=1")
	if err != nil {
		return fmt.Errorf("%w: prepare the session: %w", ErrServer, err)
	}
	v, err := s.checkServer(q)
	if err != nil {
		return err
	}
	if err := s.readClock(q); err != nil {
		return err
	}
	t := locksTable(s.cfg.Table)
	if err := s.checkTable(q, t); err != nil {
		return err
	}
	denied, err := checkRights(q, t)
	if err != nil {
		return err
	}
	v.noDelete = denied != nil
	if strings.Contains(v.version, "MariaDB") {
		// A statement is not carried out long after its client has given up.
		if _, err := q.rows("SET SESSION max_statement_time=" +
			strconv.FormatFloat(s.cfg.Timeout.Seconds(), 'f', 3, 64)); err != nil {
			return fmt.Errorf("%w: prepare the session: %w", ErrServer, err)
		}
	}
	if err := s.checkPermits(q); err != nil {
		return err
	}
	s.returning.Store(!s.cfg.plain && v.returns())
	s.seen.Put(v, func() { s.report(v) })
	return nil
}

// checkServer reads the variables of a server, and reports whether it can be used.
func (s *Store) checkServer(q quick) (*server, error) {
	rows, err := q.rows("SHOW GLOBAL VARIABLES WHERE Variable_name IN " +
		"('version','read_only','innodb_read_only','super_read_only','max_allowed_packet'," +
		"'log_bin','binlog_format','sync_binlog','innodb_flush_log_at_trx_commit')")
	if err != nil {
		return nil, fmt.Errorf("%w: read its variables: %w", ErrServer, err)
	}
	vars := map[string]string{}
	for _, r := range rows {
		if len(r) == 2 {
			vars[r[0]] = r[1]
		}
	}
	v := &server{version: vars["version"], flush: vars["innodb_flush_log_at_trx_commit"],
		binlog: vars["log_bin"], sync: vars["sync_binlog"]}
	if err := rightVersion(v.version); err != nil {
		return nil, err
	}
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if isOn(vars[name]) {
			return nil, fmt.Errorf("%w: %s is ON there: %w", ErrServer, name, errReadOnly)
		}
	}
	if isOn(v.binlog) && vars["binlog_format"] == "STATEMENT" {
		return nil, fmt.Errorf("%w: its binlog_format is STATEMENT, which forbids READ "+
			"COMMITTED: set binlog_format to ROW or MIXED there", ErrServer)
	}
	if n, err := strconv.Atoi(vars["max_allowed_packet"]); err == nil && n < smallestPacket {
		return nil, fmt.Errorf("%w: its max_allowed_packet is %d: at least %d is needed",
			ErrServer, n, smallestPacket)
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

// rightVersion returns an error if the server is older than the features that the statements use.
// Servers that only have MySQL's protocol have row locks of another kind, or none.
func rightVersion(version string) error {
	for _, other := range []string{"TiDB", "Vitess", "OceanBase"} {
		if strings.Contains(version, other) {
			return fmt.Errorf("%w: it is %s, whose row locks are not InnoDB's", ErrServer, version)
		}
	}
	oldest := driverkit.Version{5, 7}
	if strings.Contains(version, "MariaDB") {
		oldest = driverkit.Version{10, 3}
	}
	// A version of unknown form is accepted.
	if have, ok := driverkit.ParseVersion(version); ok && have.Before(oldest) {
		return fmt.Errorf("%w: its version is %s, at least %d.%d is needed",
			ErrServer, version, oldest[0], oldest[1])
	}
	return nil
}

// checkRights tries the statements of the store on a table, with no rows. denied is the error of a
// user who may not delete.
func checkRights(q quick, t *table) (denied, err error) {
	failed := func(err error) error {
		return fmt.Errorf("%w: try what its user may do: %w",
			ErrServer, err)
	}
	table := "`" + t.name + "`"
	for _, try := range []string{
		"SELECT " + t.list + " FROM " + table + " WHERE 1=0",
		"INSERT INTO " + table + " (" + t.list + ") SELECT " + t.list + " FROM " + table +
			" AS other WHERE 1=0 ON DUPLICATE KEY UPDATE fence=VALUES(fence)",
	} {
		if _, err := q.rows(try); err != nil {
			return nil, failed(err)
		}
	}
	_, err = q.rows("DELETE FROM " + table + " WHERE 1=0")
	if number(err) == erTableDenied {
		return failed(err), nil
	}
	return nil, err
}

// report logs the properties of a server.
func (s *Store) report(v *server) {
	log := s.log.With(zap.String("version", v.version), zap.String("addr", s.cfg.Addr()))
	log.Info("connected to mysql")
	if !v.durable() {
		log.Warn("a crash of the server's machine may lose locks that it has confirmed: set "+
			"innodb_flush_log_at_trx_commit=1, and sync_binlog=1 where log_bin is ON",
			zap.String("innodb_flush_log_at_trx_commit", v.flush), zap.String("log_bin", v.binlog),
			zap.String("sync_binlog", v.sync))
	}
	if v.noDelete {
		log.Warn("the user may not DELETE: the rows of locks long unused stay in the table",
			zap.String("table", s.cfg.Table))
	}
}

// quick queries a connection that is not in the pool yet.
type quick struct {
	ctx  context.Context
	conn driver.Conn
}

// rows returns the first result set of query as text.
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

// noDelete reports whether the user may not delete rows.
func (s *Store) noDelete() bool {
	return s.seen.Is(func(v *server) bool { return v.noDelete })
}
