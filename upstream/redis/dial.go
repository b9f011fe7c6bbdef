package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/locksidecar/locksidecar/protocol/sock"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// poolSize is the maximum number of connections of one store to one node, without the one for
// hints. Batches in flight and renewals share them. There can be four of these, so the fourth may
// wait.
const poolSize = 3

// silence keeps go-redis from writing to the daemon's standard error.
var silence sync.Once

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// client returns a client that connects by d. check examines each new connection.
func (c *Config) client(
	d *dialer, check func(context.Context, *goredis.Conn) error,
) *goredis.Client {
	client := goredis.NewClient(c.options(d, check))
	client.AddHook(hook{d})
	return client
}

// options returns the options of go-redis. It sets those whose defaults would break a promise. A
// repeated SET NX is ambiguous, the end of a context must end a wait, and the limit of connections
// must hold.
func (c *Config) options(
	d *dialer, check func(context.Context, *goredis.Conn) error,
) *goredis.Options {
	silence.Do(func() { goredis.SetLogger(noLog{}) })
	return &goredis.Options{
		Network: c.Network, Addr: c.Addr, DB: c.DB,
		Dialer: d.dial,
		CredentialsProviderContext: func(context.Context) (string, string, error) {
			return d.credentials()
		},
		OnConnect: check,

		Protocol:                 2, // so that no push frames come between replies
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
	}
}

// dialer makes the connections to one node.
type dialer struct {
	cfg *Config
	net net.Dialer
	// where returns the node's present address. It is nil if the address is fixed.
	where func(context.Context) (addr string, err error)
	// now is the generation of new connections. Connections of an earlier one are not used again.
	now  atomic.Pointer[generation]
	last atomic.Pointer[string] // the last result of where
	open *atomic.Int64          // the number of connections, which other dialers also count
	// secret is the password that was last read.
	secret atomic.Pointer[string]
}

func (d *dialer) credentials() (user, password string, err error) {
	if user, password, err = d.cfg.Credentials(); err == nil {
		d.secret.Store(&password)
	}
	return user, password, err
}

// generation is the time between two calls of retire.
type generation struct {
	over chan struct{} // closed at its end
}

func newDialer(c *Config, where func(context.Context) (string, error), open *atomic.Int64) *dialer {
	d := &dialer{cfg: c, net: net.Dialer{Timeout: c.Timeout}, where: where, open: open}
	d.now.Store(&generation{make(chan struct{})})
	return d
}

// retire ends the present generation: its connections are closed before their next use.
func (d *dialer) retire() {
	old := d.now.Swap(&generation{make(chan struct{})})
	close(old.over)
}

// dial returns no error. If it cannot connect, the first use of the connection returns the error,
// before anything of ours is sent. After a few errors of dial, go-redis would start a goroutine
// that probes the server once a second. Nothing waits for that goroutine, and until its next probe
// the store would be down although the server is back.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	now := d.now.Load()
	c, err := d.connect(ctx, network, addr)
	if err != nil {
		return deadConn{fmt.Errorf("connect: %w", err)}, nil
	}
	d.open.Add(1)
	return &conn{Conn: c, of: d, made: now}, nil
}

func (d *dialer) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.where != nil {
		var err error
		if addr, err = d.where(ctx); err != nil {
			return nil, err
		}
		d.last.Store(&addr)
	}
	t, err := d.cfg.tlsTo(network, addr)
	if err != nil {
		return nil, err
	}
	return driverkit.Dial(ctx, &d.net, network, addr, t)
}

// tlsTo returns the client's configuration for a server at addr, or nil without TLS.
func (c *Config) tlsTo(network, addr string) (*tls.Config, error) {
	if network == "unix" {
		return nil, nil
	}
	return c.TLS.Config(addr)
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

// conn is a connection that can be retired. go-redis checks it by SyscallConn before each use.
type conn struct {
	net.Conn
	of     *dialer
	made   *generation
	closed atomic.Bool
}

// Close closes the connection and stops counting it.
func (c *conn) Close() error {
	if !c.closed.Swap(true) {
		c.of.open.Add(-1)
	}
	return c.Conn.Close()
}

var errRetired = errors.New("the connection is no longer to be used")

// SyscallConn returns an error if the connection must not be used again.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.of.now.Load() != c.made {
		return nil, errRetired
	}
	if s, ok := c.Conn.(*sock.Conn); ok { // a TLS connection can have records to read at any time
		if err := s.Idle(); err != nil {
			return nil, err
		}
	}
	return healthy{}, nil
}

// healthy is the result of a check that SyscallConn has done. Its methods do nothing.
type healthy struct{}

func (healthy) Control(func(uintptr)) error    { return nil }
func (healthy) Read(func(uintptr) bool) error  { return nil }
func (healthy) Write(func(uintptr) bool) error { return nil }
