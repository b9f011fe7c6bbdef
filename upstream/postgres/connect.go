package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// maxConns is the maximum number of connections of one store, not counting the listener's: for
	// batches in flight, for renewals, and one for all other work.
	maxConns = 5
	connLife = 10 * time.Minute
)

// pool keeps the connections.
type pool struct {
	slots chan struct{} // one for each connection in use

	mu     sync.Mutex
	idle   []*conn          // guarded by mu
	open   map[*socket]bool // all sockets, including sockets of cancel requests; guarded by mu
	closed bool             // guarded by mu
}

// conn is a connection that has passed its checks.
type conn struct {
	pg     *pgconn.PgConn
	socket *socket
	made   time.Time
	warned bool // that a commit may not have waited for its synchronous standbys: see harmless
}

// socket is a network connection that the pool knows, so that Close can end it. After a timeout,
// pgconn sends a cancel request in the background and waits up to 15 seconds for its answer.
type socket struct {
	net.Conn
	pool *pool
}

func (k *socket) Close() error {
	k.pool.mu.Lock()
	delete(k.pool.open, k)
	k.pool.mu.Unlock()
	return k.Conn.Close()
}

var errClosed = errors.New("the store is closed")

func (p *pool) init() {
	p.slots = make(chan struct{}, maxConns)
	p.open = map[*socket]bool{}
}

func (p *pool) dial(ctx context.Context, network, addr string) (*socket, error) {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	raw, err := (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	k := &socket{raw, p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.Join(errClosed, raw.Close())
	}
	p.open[k] = true
	return k, nil
}

// dropIdle closes the connections that are not in use. After one has given no answer, the others
// may lead to the same server that is cut off.
func (p *pool) dropIdle() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// close ends all connections.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.dropIdle()
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.open {
		_ = k.Conn.Close()
	}
}

func (p *pool) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// close tells the server that the connection ends, and does not wait for it.
func (c *conn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = c.pg.Close(ctx)
}

// take returns an idle connection or a new one. The caller returns it by give.
func (s *Store) take(ctx context.Context) (*conn, error) {
	p := &s.pool
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		<-p.slots
		return nil, err
	}
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			break
		}
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		if time.Since(c.made) < connLife && c.socket.quiet() {
			return c, nil
		}
		c.close()
	}
	c, err := s.connect(ctx, nil)
	if err != nil {
		<-p.slots
		return nil, err
	}
	return c, nil
}

// give returns a connection to the pool. It closes a connection that has failed.
func (s *Store) give(c *conn) {
	p := &s.pool
	defer func() { <-p.slots }()
	p.mu.Lock()
	keep := !c.pg.IsClosed() && !c.pg.IsBusy() && c.pg.TxStatus() == 'I' && !p.closed
	if keep {
		p.idle = append(p.idle, c)
	}
	p.mu.Unlock()
	if !keep {
		c.close()
	}
}

// quiet reports whether an idle connection has nothing to read. The server sends nothing unasked,
// except when it ends the connection or a parameter has changed.
func (k *socket) quiet() bool {
	sc, ok := k.Conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	// raw.Read could block here: pgconn may still read in the background since its last slow write,
	// and Read would wait for that.
	quiet := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK || err == syscall.EINTR
	})
	return err == nil && quiet
}

// connect makes a connection and checks its server, because the name may lead to another server
// than before. notified receives the notifications of the connection, if it is not nil.
func (s *Store) connect(ctx context.Context, notified func(payload string)) (*conn, error) {
	c := &conn{made: time.Now()}
	cfg, err := s.options(c)
	if err != nil {
		return nil, err
	}
	if notified != nil {
		cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { notified(n.Payload) }
	}
	dialing, cancel := context.WithTimeout(context.WithValue(ctx, forConn{}, true), s.cfg.Timeout)
	defer cancel()
	if c.pg, err = pgconn.ConnectConfig(dialing, cfg); err != nil {
		return nil, s.connecting(err)
	}
	checking, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	if err := s.check(checking, c); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// forConn is the key of a context in which connect makes the socket of its connection. The library
// makes the socket of a cancel request in another goroutine, and without this context.
type forConn struct{}

// patience returns the time limit of a check, which may have to make the table.
func (s *Store) patience() time.Duration { return max(s.cfg.Timeout, 5*time.Second) }

// options returns the settings of one connection. The password file is read each time. Nothing
// comes from the environment variables and files of libpq.
func (s *Store) options(c *conn) (*pgconn.Config, error) {
	user, password, err := s.cfg.URL.Credentials()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(s.cfg.Addr())
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", port, err)
	}
	cfg := s.base.Copy()
	cfg.Host, cfg.Port, cfg.Database = host, uint16(n), s.cfg.Database
	cfg.User, cfg.Password = user, password
	// The dialer resolves the name, because it divides its time among the addresses. The library
	// would wait for the first address until the time is over.
	cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) {
		return []string{host}, nil
	}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		k, err := s.pool.dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if ctx.Value(forConn{}) != nil {
			c.socket = k
		}
		return k, nil
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		// The warning has no code of its own.
		c.warned = c.warned || n.SeverityUnlocalized == "WARNING" && !slices.Contains(harmless, n.Routine)
	}
	return cfg, nil
}

// baseOptions reads the files that the Config names, so that an error in them is known at once.
func (s *Store) baseOptions() (*pgconn.Config, error) {
	// Each variable of libpq is overridden here or below, except for PGSERVICE, which names a section
	// that must exist.
	cfg, err := pgconn.ParseConfig("host=localhost port=5432 user=- password=- dbname=- " +
		"connect_timeout=0 sslmode=disable passfile=/dev/null sslrootcert='' sslcert='' sslkey='' " +
		"sslcertmode=allow sslnegotiation=postgres target_session_attrs=any " +
		"channel_binding=prefer require_auth='' min_protocol_version=3.0 max_protocol_version=3.0")
	if err != nil {
		return nil, fmt.Errorf("%w (is PGSERVICE set in the environment?)", err)
	}
	if cfg.TLSConfig, err = s.cfg.URL.ReadFiles(s.cfg.Addr()); err != nil {
		return nil, err
	}
	cfg.Fallbacks, cfg.ValidateConnect, cfg.AfterConnect, cfg.ConnectTimeout = nil, nil, nil, 0
	cfg.RuntimeParams = map[string]string{"application_name": "locksidecar"}
	return cfg, nil
}

// query carries out one statement with parameters and returns its rows as text.
func (c *conn) query(ctx context.Context, sql string, params ...string) ([][][]byte, error) {
	values := make([][]byte, len(params))
	for i, p := range params {
		values[i] = []byte(p)
	}
	r := c.pg.ExecParams(ctx, sql, values, nil, nil, nil).Read()
	return r.Rows, r.Err
}

// aside carries out work other than batches. It does one thing at a time, so that it uses at most
// one connection.
func (s *Store) aside(ctx context.Context, do func(c *conn) error) error {
	select {
	case s.asides <- struct{}{}:
		defer func() { <-s.asides }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer s.give(c)
	return do(c)
}
