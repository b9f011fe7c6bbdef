package mysql

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
)

const (
	// maxConns are the connections of one store: batches in flight, renewals, and
	// one for looking around.
	maxConns = 5
	connLife = 10 * time.Minute
)

// connector makes connections that have been checked.
type connector struct {
	store *Store
	base  driver.Connector
}

// connector reads the files that the Config names, so that what is wrong with
// them is known at once.
func (s *Store) connector() (driver.Connector, error) {
	tlsConfig, err := s.cfg.URL.TLS.Config(s.cfg.Addr())
	if err != nil {
		return nil, err
	}
	if _, _, err := s.cfg.URL.Credentials(); err != nil {
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

// Connect makes a connection and looks at what it has led to: a name may lead to
// another server than last time. It is called by database/sql.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, c.store.connecting(err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.store.patience())
	defer cancel()
	if err := c.store.check(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, notBad(err)
	}
	return conn, nil
}

func (c *connector) connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.store.cfg.Timeout)
	defer cancel()
	return c.base.Connect(ctx)
}

// patience is how long a check may take: it may have to make the table.
func (s *Store) patience() time.Duration { return max(s.cfg.Timeout, 5*time.Second) }

// notBad keeps database/sql from trying again what a check has refused.
func notBad(err error) error {
	if unsent(err) {
		return fmt.Errorf("check the server: %v", err) //nolint:errorlint // it must not be ErrBadConn
	}
	return err
}

// Driver is asked for by database/sql.
func (c *connector) Driver() driver.Driver { return c.base.Driver() }

// conn takes a connection, or makes one.
func (s *Store) conn(ctx context.Context) (*sql.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.db.Conn(ctx)
}

// dismiss makes the pool close conn.
func dismiss(conn *sql.Conn) { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) }

// jitter is d, more or less.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
