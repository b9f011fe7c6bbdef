package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// server has the findings of the check of a connection.
type server struct {
	version  string
	fsync    string
	pages    string // full_page_writes
	sync     string // synchronous_standby_names
	standbys int    // that are connected now
	pooler   bool   // the connection leads through one
	noDelete bool   // the user may not delete rows
}

// durable reports whether the server keeps what it has confirmed when its machine crashes.
func (v *server) durable() bool { return v.fsync == "on" && v.pages == "on" }

// replicated reports whether every standby that can become the primary has all commits that the
// server has confirmed.
func (v *server) replicated() bool { return v.standbys == 0 || v.sync != "" }

// check prepares a new connection, and checks the server and the tables before any other request.
// Its errors mean that nothing was done.
func (s *Store) check(ctx context.Context, c *conn) error {
	v, err := s.inspectServer(ctx, c)
	if err != nil {
		return err
	}
	if err := c.pg.Exec(ctx, s.names.sql("session")).Close(); err != nil {
		return fmt.Errorf("%w: prepare the session: %w", ErrServer, err)
	}
	if err := s.checkSchema(ctx, c); err != nil {
		return err
	}
	if v.noDelete, err = s.checkRights(ctx, c); err != nil {
		return err
	}
	if _, err := c.pg.Prepare(ctx, "apply", s.names.call(), nil); err != nil {
		return fmt.Errorf("prepare the statement: %w", err)
	}
	s.seen.Put(v, func() { s.report(v) })
	return nil
}

// inspectServer checks whether a server may be used.
func (s *Store) inspectServer(ctx context.Context, c *conn) (*server, error) {
	rows, err := c.query(ctx, s.names.sql("server"))
	if err != nil {
		return nil, fmt.Errorf("%w: read its settings: %w", ErrServer, err)
	}
	if len(rows) != 1 {
		return nil, errAnswer
	}
	text := func(i int) string { return string(rows[0][i]) }
	number := func(i int) int64 { n, _ := strconv.ParseInt(text(i), 10, 64); return n }
	version := text(0)
	for _, other := range []string{"CockroachDB", "-YB-", "YugabyteDB", "Redshift"} {
		if strings.Contains(version, other) {
			return nil, fmt.Errorf("%w: it is %s, whose row locks are not PostgreSQL's",
				ErrServer, version)
		}
	}
	switch {
	case number(1) < 120000:
		return nil, fmt.Errorf("%w: it is %s: %w", ErrServer, version, errVersion)
	case text(2) != "f", text(3) != "off":
		return nil, fmt.Errorf("%w: %w", ErrServer, errReadOnly)
	case text(4) != "UTF8":
		return nil, fmt.Errorf("%w: the encoding of database %s is %s, not UTF8",
			ErrServer, s.cfg.Database, text(4))
	}
	s.fences.SawClock(number(10))
	return &server{version: version, fsync: text(5), pages: text(6), sync: text(7),
		standbys: int(number(8)), pooler: uint32(number(9)) != c.pg.PID()}, nil
}

// report logs the properties of a server.
func (s *Store) report(v *server) {
	log := s.log.With(zap.String("version", v.version), zap.String("addr", s.cfg.Addr()))
	log.Info("connected to postgres")
	if !v.durable() {
		log.Warn("a crash of the server's machine may lose locks that it has confirmed: "+
			"set fsync=on and full_page_writes=on",
			zap.String("fsync", v.fsync), zap.String("full_page_writes", v.pages))
	}
	if !v.replicated() {
		log.Warn("a failover to an asynchronous standby may lose locks that the server has "+
			"confirmed: set synchronous_standby_names",
			zap.Int("standbys", v.standbys))
	}
	if v.pooler {
		log.Warn("the connection leads through a pooler: it must pool sessions, not transactions " +
			"(pool_mode=session), or hints are lost and statements fail")
	}
	if v.noDelete {
		log.Warn("the user may not DELETE: rows of locks long unused stay in the table",
			zap.String("table", s.names.locks))
	}
}

// noDelete reports whether the user may not delete rows.
func (s *Store) noDelete() bool {
	return s.seen.Is(func(v *server) bool { return v.noDelete })
}
