package daemon

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/audit"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/peer"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/sock"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
)

// Config configures a daemon. The zero value of a field means its default.
type Config struct {
	Socket      string      // path of the Unix socket; required
	SocketMode  fs.FileMode // 0660
	SocketGroup string      // name or number; the process's own when empty
	// Listener listens on Socket if another program, such as systemd, has made the socket and will
	// remove it.
	Listener    *net.UnixListener
	Host        string // this host's name on other hosts; the machine's name when empty
	AdminListen string // "host:port" for the admin listener beside its socket; none when empty
	Serving
	// Takeover is called with true before a takeover makes clients wait, and with false when they
	// are served again, in both processes. In between, the takeover may use all CPUs of the
	// machine. Optional; it must not block.
	Takeover func(begins bool)
	// TakenOver is called when another process is about to replace this one, with the process id of
	// that process. If the takeover fails after that, it is called with the id of this process. It
	// must not block for long.
	TakenOver func(pid int)
	Log       *zap.Logger
	// Audit receives the audit log of Logging.Audit: lines of JSON, many in one call; none if nil.
	Audit io.Writer
	// Spans receives the spans of acquires with a trace context; nil for none. It is called on one
	// goroutine of the daemon, and must not block.
	Spans   func(audit.Span)
	Version string
	// Seen returns what this process knows of the stores' servers. A successor gets it from
	// takeover.State.Seen before it opens the stores. Optional; it must not block.
	Seen func() []byte
}

// Serving is the part of a configuration that Reload can change while a daemon runs.
type Serving struct {
	Stores []StoreConfig // at least one
	// One of the Namespaces has the empty prefix. If there are none, a default one uses the first
	// store.
	Namespaces []engine.Namespace
	Classes    []engine.Class // keys that are counted separately
	Logging    audit.Settings
	Drain      time.Duration // the time that holders get when the daemon stops: 10 s
	Limits     ServingLimits
	Operators  engine.Access // users and groups that may unlock by force: see Daemon.MayUnlock
	// Commit is called once, before this configuration serves any request. It makes the changes that
	// other processes can see. It is called as late as possible: in Listen and Reload nothing can fail
	// afterwards. Listen, Inherit and Reload return its error. Optional.
	Commit func() error
}

// StoreConfig is a store with its name.
type StoreConfig struct {
	Name  string
	Store upstream.Store
	// Key identifies the store: it is the same for the same store in every process. A process that
	// takes over has to have a store with the same name and Key.
	Key string
	// Parts are the stores that Store is made of, in their order: one, or two while keys move
	// between them. They are needed only to list the locks in the stores.
	Parts []engine.Part
	// Lock is a file that this process has locked for the store, and that a process that takes over
	// needs; nil for none.
	Lock *os.File
	// Close is called when nothing uses the store any more. If it is nil, the caller closes
	// the store.
	Close func()
}

// ServingLimits bounds the resources that clients can use.
type ServingLimits struct {
	engine.Limits
	MaxConns  int           // connections: 16384
	MaxSilent time.Duration // from connecting to hello: 10 s. The configuration file cannot set it
}

func (c *Config) defaults() {
	c.SocketMode = cmp.Or(c.SocketMode, 0o660)
	c.Serving.defaults()
	c.Log = cmp.Or(c.Log, zap.NewNop())
	if c.Takeover == nil {
		c.Takeover = func(bool) {}
	}
	if c.TakenOver == nil {
		c.TakenOver = func(int) {}
	}
	if c.Audit == nil {
		c.Audit = io.Discard
	}
}

func (c *Serving) defaults() {
	if len(c.Namespaces) == 0 && len(c.Stores) > 0 {
		c.Namespaces = []engine.Namespace{{Store: c.Stores[0].Name}}
	}
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	c.Limits.MaxConns = cmp.Or(c.Limits.MaxConns, 16384)
	c.Limits.MaxHolds = cmp.Or(c.Limits.MaxHolds, 2_000_000)
	c.Limits.MaxWaiters = cmp.Or(c.Limits.MaxWaiters, 65_536)
	c.Limits.MaxFrame = cmp.Or(c.Limits.MaxFrame, protocol.DefaultMaxFrame)
	c.Limits.OutBuffer = cmp.Or(c.Limits.OutBuffer, 4<<20)
	c.Limits.MaxSilent = cmp.Or(c.Limits.MaxSilent, 10*time.Second)
}

// Daemon is a host's lock service: an engine with its sockets, its stores and its timer.
type Daemon struct {
	cfg       Config                  // all but Serving
	serving   atomic.Pointer[Serving] // the present configuration; Reload replaces it
	log       *zap.Logger
	audit     *audit.Log
	clock     upstream.Clock
	engine    *engine.Engine
	site      *site
	timer     *renewer.Timer
	stores    *storeSet
	peers     *peer.Watcher
	admin     *admin.Server
	viewer    *admin.Viewer
	inherited *inherited    // the state that was taken over, before Serve
	throttled atomic.Uint64 // total delay of requests over a rate limit, in nanoseconds
	began     int64         // when the daemon was made, by clock

	wg        sync.WaitGroup // the goroutines that Serve waits for
	halt      chan struct{}  // closed by Stop: from then on no goroutine may wait
	haltOnce  sync.Once
	bytesRead atomic.Uint64 // from clients

	frozen    atomic.Bool    // everything is stopped, or about to be: see freeze
	frozeAt   time.Time      // when the last freeze began; guarded by transferring
	accepting sync.WaitGroup // the goroutine of accept
	// transferring is held during a takeover, a reload, the close of a store and the end of the
	// daemon.
	transferring sync.Mutex
	freezing     sync.RWMutex  // held for writing by a freeze, for reading by a forced unlock
	transferred  chan struct{} // closed once another process has taken over
	ending       chan struct{} // closed by End: from then on no takeover is committed
	endOnce      sync.Once
	started      chan struct{} // closed once Serve has started everything

	mu          sync.Mutex
	freezeConns chan struct{}      // closed when the reapers have to end for a freeze; guarded by mu
	conns       map[*conn]struct{} // guarded by mu
	empty       chan struct{}      // closed when conns has become empty after draining; guarded by mu
	running     context.Context    // ends when a freeze begins; guarded by mu

	stopRunning context.CancelFunc // ends running; guarded by mu
	// queries is the context of queries of stores. It ends with a freeze that has waited for them.
	// Guarded by mu.
	queries    context.Context
	cutQueries context.CancelCauseFunc // ends queries; guarded by mu
}

// Listen makes the socket and a daemon for it. The daemon answers clients while Serve runs.
func Listen(cfg Config) (*Daemon, error) {
	cfg.defaults()
	if cfg.Socket == "" || len(cfg.Stores) == 0 {
		return nil, errors.New("a daemon needs a socket and a store")
	}
	at, err := newSite(&cfg)
	if err != nil {
		return nil, err
	}
	d, err := assemble(cfg, at)
	if err == nil && cfg.Commit != nil {
		if err = cfg.Commit(); err != nil {
			d.discard()
			return nil, err
		}
	}
	return d, err
}

// assemble makes a daemon at a site. After an error it has closed the site.
func assemble(cfg Config, at *site) (d *Daemon, err error) {
	d = &Daemon{cfg: cfg, log: cfg.Log, clock: renewer.Boottime, site: at,
		halt: make(chan struct{}), transferred: make(chan struct{}), ending: make(chan struct{}),
		started:     make(chan struct{}),
		freezeConns: make(chan struct{}), conns: make(map[*conn]struct{})}
	d.makeContexts()
	d.began = d.clock()
	d.serving.Store(&cfg.Serving)
	table := cache.DefaultConfig()
	table.MaxHolds, table.MaxWaiters = int64(cfg.Limits.MaxHolds), int64(cfg.Limits.MaxWaiters)
	table.Seed = rand.Uint64()
	d.engine = engine.NewEngine(engine.Settings{
		Table: table, Users: cfg.Limits.Users, MaxFrame: cfg.Limits.MaxFrame,
		OutBuffer: cfg.Limits.OutBuffer, Version: cfg.Version,
		InFlight: 2, BatchSize: upstream.MaxBatch, Trace: cfg.Spans != nil,
	}, d.clock, func(at int64) { d.timer.Wake(at) })
	d.engine.SetSelf(registration(&cfg))
	d.engine.SetOperators(cfg.operators())
	d.audit = audit.New(audit.Config{Log: d.log, Out: cfg.Audit, Spans: cfg.Spans, Clock: d.clock,
		Lost: func(n *cache.Notice, at time.Time) { d.viewer.Lose(n, at) }}, cfg.Logging)
	d.engine.Observe(d.audit)
	d.engine.SetAudit(cfg.Logging.Audit)
	d.stores = newStoreSet(d)
	d.viewer = d.newViewer()
	if d.peers, err = peer.NewWatcher(); err == nil {
		err = d.stores.add(cfg.Stores)
	}
	if err == nil {
		err = d.engine.Route(cfg.Namespaces, cfg.Classes)
	}
	if err == nil {
		d.admin, err = d.newAdmin()
	}
	if err == nil {
		d.timer, err = renewer.NewTimer(d.engine.Tick)
	}
	if err != nil {
		d.discard()
		return nil, err
	}
	return d, nil
}

// registration returns this daemon's entry in its stores, which other hosts read.
func registration(cfg *Config) upstream.Registration {
	r := upstream.Registration{Host: cfg.Host, Version: cfg.Version, PID: os.Getpid(),
		Started: time.Now().UnixMilli()}
	if r.Host == "" {
		r.Host, _ = os.Hostname()
	}
	return r
}

// discard ends a daemon that has never served.
func (d *Daemon) discard() {
	d.audit.Close()
	if d.timer != nil {
		d.timer.Close()
	}
	if d.admin != nil {
		d.admin.Close(d.site.shared)
	}
	if d.peers != nil {
		d.peers.Close()
	}
	d.site.close(&d.cfg)
}

// ErrBusy is the error of Reload if the same reload may succeed later.
var ErrBusy = errors.New("another process is taking over, or the daemon ends")

// Reload applies another configuration. Stores in both configurations keep their state. Reload
// starts to use a new store, and closes a removed one once nothing is held there. It fails while
// another process takes over, because the daemon has offered its present stores to that process.
// After an error nothing has changed: the daemon does not use the new stores, and the caller
// closes them.
func (d *Daemon) Reload(next Serving) error {
	if !d.lockTransferring() {
		return ErrBusy
	}
	defer d.transferring.Unlock()
	if isClosed(d.transferred) {
		return ErrTakenOver
	}
	next.defaults()
	if err := d.stores.change(&next); err != nil {
		return err
	}
	d.engine.SetLimits(next.Limits.Limits)
	d.engine.SetOperators(next.operators())
	d.serving.Store(&next)
	d.audit.Set(next.Logging)
	d.engine.SetAudit(next.Logging.Audit)
	return nil
}

// Serve answers clients until ctx is done. Then it drains: it refuses new acquires, gives holders
// the drain time, tells the remaining clients that their sessions end, and releases their holds. It
// returns when every goroutine has ended. If detached holds are left, it parks them in a file for
// the next process, and returns ErrTakenOver.
//
// After a takeover Serve returns ErrTakenOver as soon as the admin requests in flight are answered
// and the logs are written, after two seconds at the latest. Whenever it returns ErrTakenOver, this
// process has to end without changing anything that the other process uses.
func (d *Daemon) Serve(ctx context.Context) (err error) {
	if h := d.inherited; h != nil {
		d.inherited = nil
		d.begin(h)
	} else {
		d.stores.start()
	}
	d.acceptAll()
	d.wg.Go(d.viewer.Remember)
	d.admin.Start()
	close(d.started)

	select {
	case <-ctx.Done():
	case <-d.transferred:
	case <-d.halt:
	}
	d.End()
	d.transferring.Lock() // waits for a takeover that is committed
	defer d.transferring.Unlock()
	if isClosed(d.transferred) {
		d.admin.Finish() // its listeners stay open in the other process
		// Clients keep their connections to both processes until this one has ended: until then they do
		// not notice if the other one closes a connection. So this process must not wait for long here.
		d.audit.Finish()
		return ErrTakenOver
	}
	drained := !d.halted()
	if drained {
		d.drain()
	}
	d.Stop()
	d.site.closeSocket(&d.cfg)
	d.admin.Close(d.site.shared)
	d.wg.Wait()
	d.settle()
	d.timer.Close()
	if drained && d.parkDetached() {
		err = ErrTakenOver
	} else {
		if drained {
			d.engine.ShutDetached()
		}
		d.stores.close()
	}
	d.peers.Close()
	d.audit.Close()
	_ = d.site.Lock.Close() // last: another daemon may serve from now on
	return err
}

// Totals returns the counters and present numbers of the daemon's engine.
func (d *Daemon) Totals() engine.Totals {
	t := d.engine.Totals()
	t.Throttled = int64(d.throttled.Load())
	for i := range t.Stores {
		t.Stores[i].Connections = d.stores.connections(t.Stores[i].Name)
	}
	return t
}

// End announces the end of the daemon. A takeover that is not committed fails, and no new one
// begins. Park can still pass the daemon's state on.
func (d *Daemon) End() { d.endOnce.Do(func() { close(d.ending) }) }

// Stop ends the daemon at once, without a drain. It releases no holds: their keys stay closed until
// the stated validity is over.
func (d *Daemon) Stop() { d.haltOnce.Do(func() { close(d.halt) }) }

// TimerLate returns the longest delay of the timer since the last call of TimerLate.
func (d *Daemon) TimerLate() time.Duration { return d.timer.Worst() }

// BytesRead returns the number of bytes that were read from clients.
func (d *Daemon) BytesRead() uint64 { return d.bytesRead.Load() }

func (d *Daemon) halted() bool { return isClosed(d.halt) }

// acceptAll runs accept on a goroutine that freeze and Serve can wait for.
func (d *Daemon) acceptAll() {
	d.accepting.Add(1)
	d.wg.Go(func() {
		defer d.accepting.Done()
		d.accept()
	})
}

// accept admits connections until a freeze begins, or the daemon ends.
func (d *Daemon) accept() {
	for {
		nc, err := d.acceptOne()
		if err != nil {
			if d.halted() || errors.Is(err, net.ErrClosed) ||
				d.frozen.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			// Most likely, the process has no free descriptors. The existing connections continue.
			d.log.Error("accept failed", zap.String("event", "accept_failed"), zap.Error(err))
			select {
			case <-time.After(100 * time.Millisecond):
			case <-d.halt:
				return
			}
			continue
		}
		d.admit(nc)
	}
}

// acceptOne waits for the next connection.
func (d *Daemon) acceptOne() (*sock.Conn, error) {
	nc, err := d.site.Listener.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return sock.New(nc)
}

// admit begins a session on a connection, or refuses the connection.
func (d *Daemon) admit(nc *sock.Conn) {
	refuse := func(c protocol.Code, msg string) {
		d.engine.CountFault(c)
		_ = nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = nc.Write(protocol.AppendFatal(nil, c, msg))
		_ = nc.Close()
	}
	if d.engine.Draining() {
		refuse(protocol.Draining, goingAway)
		return
	}
	d.welcome(nc, refuse)
}

// welcome begins a session on a connection, unless a limit is reached; then it calls refuse.
func (d *Daemon) welcome(nc *sock.Conn, refuse func(protocol.Code, string)) {
	c := newConn(d, nc)
	d.mu.Lock()
	full := len(d.conns) >= d.serving.Load().Limits.MaxConns
	if !full {
		d.conns[c] = struct{}{}
	}
	d.mu.Unlock()
	if full {
		refuse(protocol.Limit, "the daemon has as many connections as limits.max_conns allows")
		return
	}
	var client engine.Peer
	client, c.peer = d.peers.Watch(nc, c.processEnded)
	c.mu.Lock() // a drain may flush the session as soon as the engine has it, and Flush needs c.s
	c.s = d.engine.Open(client, c)
	c.mu.Unlock()
	if c.s == nil {
		c.peer.Close()
		refuse(protocol.Limit, "this user has as many connections as limits.max_user_conns allows")
		d.forget(c)
		d.audit.Refused(client)
		return
	}
	c.awaitHello()
	c.turn = turn{uncharged: connCost, setup: true, limit: c.s.RateLimit()}
	c.run()
	if d.engine.Draining() { // since admit has asked: then the drain may have missed this session
		c.s.Fatal(protocol.Draining, goingAway)
	}
}

const goingAway = "the daemon is going away"

// awaitHello ends the session if its hello does not arrive in time.
func (c *conn) awaitHello() {
	c.hello = time.AfterFunc(c.d.serving.Load().Limits.MaxSilent, func() {
		if _, greeted := c.s.Client(); !greeted && !c.s.Ended() {
			c.s.Fatal(protocol.BadFrame, "no hello")
		}
	})
}

// processEnded is called by the peer watcher when the peer's process has ended. Another process may
// still have the connection's socket.
func (c *conn) processEnded() {
	c.peerGone()
	_ = c.sock.CloseRead()
}

// forget removes a connection that has ended.
func (d *Daemon) forget(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
	if len(d.conns) == 0 && d.empty != nil {
		close(d.empty)
		d.empty = nil
	}
}

// whenEmpty returns a channel that is closed when no connection is left.
func (d *Daemon) whenEmpty() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	ch := make(chan struct{})
	if len(d.conns) == 0 {
		close(ch)
	} else {
		d.empty = ch
	}
	return ch
}
