package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Connections of one store to one node: batches in flight and renewals, and one
// more for hints.
const poolSize = 3

// silence keeps go-redis from writing to the daemon's standard error.
var silence sync.Once

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// options are go-redis's for c. What is not c's is here because its default
// would break a promise: a retried SET NX is ambiguous, a context's end has to
// end a wait, and 4 connections are 4.
func (c *Config) options(check func(context.Context, *goredis.Conn) error) (*goredis.Options, error) {
	silence.Do(func() { goredis.SetLogger(noLog{}) })
	d := dialer{net: net.Dialer{Timeout: c.Timeout}}
	if c.TLS {
		t, err := c.tls()
		if err != nil {
			return nil, err
		}
		d.tls = t
	}
	return &goredis.Options{
		Network: c.Network, Addr: c.Addr, DB: c.DB,
		Dialer:                     d.dial,
		CredentialsProviderContext: c.credentials,
		OnConnect:                  check,

		Protocol:                 2, // no push frames to look for between replies
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},

		MaxRetries:            -1,
		ContextTimeoutEnabled: true,
		DialTimeout:           c.Timeout,
		DialerRetries:         1,
		ReadTimeout:           c.Timeout,
		WriteTimeout:          c.Timeout,

		PoolSize:         poolSize,
		MaxActiveConns:   poolSize,
		PipelinePoolSize: -1,
		PoolTimeout:      c.Timeout,
	}, nil
}

func (c *Config) credentials(context.Context) (string, string, error) {
	if c.PasswordFile == "" {
		return c.User, string(c.Password), nil
	}
	b, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", "", fmt.Errorf("read password file: %w", err)
	}
	return c.User, strings.TrimRight(string(b), "\r\n"), nil
}

func (c *Config) tls() (*tls.Config, error) {
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return nil, err
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if c.ServerName != "" {
		t.ServerName = c.ServerName
	}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("read ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read ca: no certificate in %s", c.CA)
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("read cert and key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

type dialer struct {
	net net.Dialer
	tls *tls.Config
}

// dial never fails: what goes wrong comes with the first use of the connection,
// before anything of ours is sent. go-redis would answer a few failed dials with
// a goroutine that probes once a second, that nobody waits for, and that keeps
// the store away for that second after the server is back.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.net.DialContext(ctx, network, addr)
	if err == nil && d.tls != nil {
		t := tls.Client(c, d.tls)
		if err = t.HandshakeContext(ctx); err != nil {
			err = errors.Join(err, c.Close())
		} else {
			c = t
		}
	}
	if err != nil {
		return deadConn{fmt.Errorf("connect: %w", err)}, nil
	}
	return c, nil
}

// deadConn is a connection that could not be made.
type deadConn struct{ err error }

func (c deadConn) Read([]byte) (int, error)       { return 0, c.err }
func (c deadConn) Write([]byte) (int, error)      { return 0, c.err }
func (deadConn) Close() error                     { return nil }
func (deadConn) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (deadConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (deadConn) SetDeadline(time.Time) error      { return nil }
func (deadConn) SetReadDeadline(time.Time) error  { return nil }
func (deadConn) SetWriteDeadline(time.Time) error { return nil }
