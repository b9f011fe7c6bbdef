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

// Connections of one store to one node: for batches in flight and renewals, of which
// the fourth that may be waits for one of three, and one more for hints.
const poolSize = 3

// silence keeps go-redis from writing to the daemon's standard error.
var silence sync.Once

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// client makes connections as c says, by d, and check looks at each.
func (c *Config) client(
	d *dialer, check func(context.Context, *goredis.Conn) error,
) *goredis.Client {
	client := goredis.NewClient(c.options(d, check))
	client.AddHook(hook{d})
	return client
}

// options are go-redis's for c. What is not c's is here because its default
// would break a promise: a retried SET NX is ambiguous, a context's end has to
// end a wait, and 4 connections are 4.
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
	}
}

// dialer makes the connections to one node.
type dialer struct {
	cfg *Config
	net net.Dialer
	// where finds out where the node is now; nil when its address is fixed.
	where func(context.Context) (addr string, err error)
	// now is the generation that connections belong to. Those of an earlier one are
	// not used again.
	now  atomic.Pointer[generation]
	last atomic.Pointer[string] // where it last was
	open *atomic.Int64          // connections, with those of other dialers
	// secret is the password as it was last read.
	secret atomic.Pointer[string]
}

func (d *dialer) credentials() (user, password string, err error) {
	if user, password, err = d.cfg.Credentials(); err == nil {
		d.secret.Store(&password)
	}
	return user, password, err
}

// generation is a time between two retirements.
type generation struct {
	over chan struct{} // closed at its end
}

func newDialer(c *Config, where func(context.Context) (string, error), open *atomic.Int64) *dialer {
	d := &dialer{cfg: c, net: net.Dialer{Timeout: c.Timeout}, where: where, open: open}
	d.now.Store(&generation{make(chan struct{})})
	return d
}

// retire makes the connections of now close before their next use.
func (d *dialer) retire() {
	old := d.now.Swap(&generation{make(chan struct{})})
	close(old.over)
}

// dial never fails: what goes wrong comes with the first use of the connection,
// before anything of ours is sent. go-redis would answer a few failed dials with
// a goroutine that probes once a second, that nobody waits for, and that keeps
// the store away for that second after the server is back.
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

// tlsTo is the client's configuration for a server at addr, nil without TLS.
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

// conn is a connection that can be retired. go-redis looks at it, through
// SyscallConn, each time before it uses it.
type conn struct {
	net.Conn
	of     *dialer
	made   *generation
	closed atomic.Bool
}

// Close closes the connection, and counts it no more.
func (c *conn) Close() error {
	if !c.closed.Swap(true) {
		c.of.open.Add(-1)
	}
	return c.Conn.Close()
}

var errRetired = errors.New("the connection is no longer to be used")

// SyscallConn fails when the connection must not be used again.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.of.now.Load() != c.made {
		return nil, errRetired
	}
	if s, ok := c.Conn.(*sock.Conn); ok { // what is there to read in a TLS connection tells nothing
		if err := s.Idle(); err != nil {
			return nil, err
		}
	}
	return healthy{}, nil
}

// healthy stands for a descriptor that has been looked at.
type healthy struct{}

func (healthy) Control(func(uintptr)) error    { return nil }
func (healthy) Read(func(uintptr) bool) error  { return nil }
func (healthy) Write(func(uintptr) bool) error { return nil }
