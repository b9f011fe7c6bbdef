package mysql

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
)

const (
	// maxConns is the number of connections of one store: for batches in flight, for renewals, and
	// one for all other work.
	maxConns = 5
	connLife = 10 * time.Minute
)

// connector makes connections and checks them.
type connector struct {
	store *Store
	base  driver.Connector
}

// connector reads the files that the Config names, so that Open reports their faults.
func (s *Store) connector() (driver.Connector, error) {
	tlsConfig, err := s.cfg.URL.ReadFiles(s.cfg.Addr())
	if err != nil {
		return nil, err
	}
	c, err := gomysql.NewConnector(s.options(tlsConfig))
	if err != nil {
		return nil, err
	}
	return &connector{s, c}, nil
}

func (s *Store) options(tlsConfig *tls.Config) *gomysql.Config {
	o := gomysql.NewConfig()
	o.Net, o.Addr, o.DBName = "tcp", s.cfg.Addr(), s.cfg.Database
	o.TLS = tlsConfig
	o.Timeout = s.cfg.Timeout
	o.MultiStatements = true // a batch is a packet; see exchange
	o.MaxAllowedPacket = 0   // as the server has it
	o.Logger = &gomysql.NopLogger{}
	o.ConnectionAttributes = "program_name:locksidecar"
	_ = o.Apply(gomysql.BeforeConnect(func(_ context.Context, o *gomysql.Config) (err error) {
		o.User, o.Passwd, err = s.cfg.URL.Credentials()
		return err
	}))
	return o
}

// Connect makes a connection and checks its server, because a host name may lead to another server
// than before. database/sql calls it.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, c.store.connecting(err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.store.checkTimeout())
	defer cancel()
	if err := c.store.check(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, hideBadConn(err)
	}
	return conn, nil
}

func (c *connector) connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.store.cfg.Timeout)
	defer cancel()
	return c.base.Connect(ctx)
}

// checkTimeout is the time limit of a check, which may have to make the tables.
func (s *Store) checkTimeout() time.Duration { return max(s.cfg.Timeout, 5*time.Second) }

// hideBadConn keeps database/sql from repeating a connection attempt that a check has refused.
func hideBadConn(err error) error {
	if nothingSent(err) {
		return fmt.Errorf("check the server: %v",
			err) //nolint:errorlint // it must not be ErrBadConn
	}
	return err
}

// Driver is a method that database/sql requires.
func (c *connector) Driver() driver.Driver { return c.base.Driver() }

// conn returns a connection of the pool or a new one.
func (s *Store) conn(ctx context.Context) (*sql.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.db.Conn(ctx)
}

// dropIdle closes the connections that are not in use if err means that one has given no answer.
// The others may lead to the same server, which may be cut off.
func (s *Store) dropIdle(err error) {
	if number(err) != 0 || nothingSent(err) || errors.Is(err, errReadOnly) {
		return
	}
	s.db.SetMaxIdleConns(0)
	s.db.SetMaxIdleConns(maxConns)
}

// discard makes the pool close conn.
func discard(conn *sql.Conn) { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) }

// onOneConn carries out work other than batches. It does one thing at a time, so that it uses at
// most one connection.
func (s *Store) onOneConn(ctx context.Context, do func(conn *sql.Conn) error) error {
	select {
	case s.otherWork <- struct{}{}:
		defer func() { <-s.otherWork }()
	case <-ctx.Done():
		return ctx.Err()
	}
	conn, err := s.conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(conn)
}
