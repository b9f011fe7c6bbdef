package client

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/sock"
)

// Options are the name and the handlers of a connection. The handlers run on the reader
// goroutine, in the order of the wire. They must not block and must not call Close, but may call
// Go.
type Options struct {
	Name  string // the program, for people; at most protocol.MaxName bytes
	Label string // text in addition to the name

	// OnLost is called when the daemon reports a hold as lost, or the failure of a quiet release.
	// After the first Hold.ReleaseQuiet of the connection, it is not called for the loss of a hold
	// that the client does not know. So it is called once for a quiet release that a loss has crossed.
	OnLost func(Lost)
	// OnKeepalive is called with each keepalive.
	OnKeepalive func(Keepalive)
	// OnGoingAway is called when the daemon drains: the remaining holds will be lost in
	// drainMillis.
	OnGoingAway func(drainMillis uint64, msg string)
	// OnEnd is called once, when the connection and every hold have ended. err is an ErrClosed.
	OnEnd func(err error)
}

// Lost is a hold that is gone. For a quiet release that failed, Reason is LostGone, or
// LostUnconfirmed if the store has not confirmed it.
type Lost struct {
	Key          string
	Owner, Fence uint64
	Reason       protocol.Reason
}

// Keepalive is the push which states that every hold that was granted before it, and was not
// reported as lost, is valid until Until.
type Keepalive struct {
	Until uint64 // milliseconds of the daemon's clock
	Left  uint64 // milliseconds, when it was sent
}

// Client is one connection to a daemon, and so one session. Its methods may be called concurrently.
type Client struct {
	conn       *sock.Conn
	opts       Options
	welcome    protocol.Welcome // written by the hello's callback, before Dial returns
	clock      clockMap         // the same
	owners     atomic.Uint64
	wg         sync.WaitGroup // reader and writer
	done       chan struct{}  // closed when the reader has ended
	keepalives keepalives
	quiet      atomic.Bool // a Hold was released quietly

	mu       sync.Mutex
	err      error            // guarded by mu: why the connection has ended
	calls    map[uint64]*call // guarded by mu: in flight, by id
	lastID   uint64           // guarded by mu
	maxFrame int              // guarded by mu: the largest payload that may be sent
	holds    map[holdID]*Hold // guarded by mu: tracked holds, chained through next
	wr       outbox           // guarded by mu

	// unreleased has the lost holds of locks that their owner has not released. Guarded by mu.
	unreleased map[holdID][]*Hold
	abandoned  map[holdID]int // guarded by mu: number of acquires given up and not answered
	settled    chan struct{}  // guarded by mu: closed and replaced when one of them is answered
	watchdog   *time.Timer    // runs checkDaemon
	watching   bool           // guarded by mu: watchdog is set
	silent     int            // guarded by mu: runs of checkDaemon in a row with nothing read
	heard      atomic.Bool    // something was read since the last checkDaemon
}

// Dial connects to the daemon whose socket is at path, and says hello. It blocks
// until the daemon has answered or ctx ends.
func Dial(ctx context.Context, path string, opts Options) (*Client, error) {
	conn, err := sock.Dial(ctx, new(net.Dialer), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("dial daemon: %w", err)
	}
	c := newClient(conn, opts)
	if err := c.hello(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("say hello: %w", err)
	}
	return c, nil
}

func newClient(conn *sock.Conn, opts Options) *Client {
	c := &Client{
		conn: conn, opts: opts, done: make(chan struct{}),
		calls: map[uint64]*call{}, holds: map[holdID]*Hold{}, maxFrame: protocol.DefaultMaxFrame,
		unreleased: map[holdID][]*Hold{}, abandoned: map[holdID]int{}, settled: make(chan struct{}),
	}
	c.watchdog = time.AfterFunc(time.Hour, c.checkDaemon)
	c.watchdog.Stop()
	c.wr.kick = make(chan struct{}, 1)
	c.wg.Go(c.readLoop)
	c.wg.Go(c.writeLoop)
	return c
}

func (c *Client) hello(ctx context.Context) error {
	cl := newCall()
	cl.req = protocol.Request{
		Op: protocol.OpHello, MinVersion: protocol.MinVersion, MaxVersion: protocol.Version,
		Name: []byte(c.opts.Name), Label: []byte(c.opts.Label),
	}
	cl.began = now()
	if err := c.do(ctx, cl); err != nil {
		return err
	}
	v := c.welcome.Version
	cl.free()
	if v < protocol.MinVersion || v > protocol.Version {
		return &Error{Code: protocol.BadVersion, Msg: fmt.Sprintf("the daemon chose version %d", v)}
	}
	return nil
}

// welcomed records the daemon's welcome message. It runs on the reader goroutine before any later
// frame is read.
func (c *Client) welcomed(w protocol.Welcome, began int64) {
	c.welcome = w
	c.clock = mapClock(began, w.Now, now())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxFrame = int(min(w.MaxFrame, 1<<30))
}

// Welcome returns the daemon's welcome message.
func (c *Client) Welcome() protocol.Welcome { return c.welcome }

// NewOwner returns an owner number that this connection has not used yet, provided that all of
// them come from NewOwner.
func (c *Client) NewOwner() uint64 { return c.owners.Add(1) }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection has ended, an ErrClosed. It is nil while the connection is open.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection: the daemon releases everything that was acquired on
// it. Calls in flight end with ErrClosed. It waits for the goroutines and the
// handler that may be running, so it must not be called from one.
func (c *Client) Close() error {
	c.endHolds(ErrClosed) // before another client can acquire them
	c.conn.Close()        // ends the reader, which ends the rest
	c.watchdog.Stop()
	c.wg.Wait()
	return nil
}
