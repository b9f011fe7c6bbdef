package daemon

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
)

// Config is what a daemon needs. The zero value of a field is its default.
type Config struct {
	Socket      string      // path of the Unix socket; required
	SocketMode  fs.FileMode // 0660
	SocketGroup string      // name or number; the process's own when empty
	Serving
	Log     *zap.Logger
	Version string
}

// Serving is what can change while a daemon runs.
type Serving struct {
	Stores     []Store       // at least one
	Namespaces []Namespace   // one of them for the empty prefix; a default one on the first store when there are none
	Drain      time.Duration // what holders get when the daemon stops: 10 s
	Limits     Limits
}

// Store is a store under a name.
type Store struct {
	Name  string
	Store upstream.Store
	// Close is called once nothing uses the store any more. It is the caller's to do
	// when nil.
	Close func()
}

// Limits bound what clients can use up.
type Limits struct {
	MaxConns   int           // connections: 16384
	MaxHolds   int           // of a session: 2,000,000
	MaxWaiters int           // of a session: 65,536
	MaxFrame   int           // bytes of a payload: 64 KiB
	OutBuffer  int           // bytes that wait for a client to read: 4 MiB
	MaxSilent  time.Duration // without a hello: 10 s
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (c *Config) defaults() {
	orDefault(&c.SocketMode, 0o660)
	c.Serving.defaults()
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
}

func (c *Serving) defaults() {
	if len(c.Namespaces) == 0 && len(c.Stores) > 0 {
		c.Namespaces = []Namespace{{Store: c.Stores[0].Name}}
	}
	orDefault(&c.Drain, 10*time.Second)
	orDefault(&c.Limits.MaxConns, 16384)
	orDefault(&c.Limits.MaxHolds, 2_000_000)
	orDefault(&c.Limits.MaxWaiters, 65_536)
	orDefault(&c.Limits.MaxFrame, protocol.DefaultMaxFrame)
	orDefault(&c.Limits.OutBuffer, 4<<20)
	orDefault(&c.Limits.MaxSilent, 10*time.Second)
}

// Daemon is a host's lock service: an engine with its sockets, its stores and its
// timer.
type Daemon struct {
	cfg    Config // all but Serving
	now    atomic.Pointer[Serving]
	log    *zap.Logger
	clock  upstream.Clock
	engine *Engine
	ln     *net.UnixListener
	lock   *os.File // decides who serves the socket
	timer  *renewer.Timer
	stores *stores
	peers  *peerWatcher

	wg       sync.WaitGroup // of everything that Serve waits for
	halt     chan struct{}  // closed when nothing is waited for any more
	haltOnce sync.Once
	read     atomic.Uint64 // bytes, from clients

	mu    sync.Mutex
	conns map[*conn]struct{} // guarded by mu
	empty chan struct{}      // closed when conns has become empty after draining; guarded by mu
}

// Listen makes the socket and everything behind it. The daemon answers once
// Serve runs.
func Listen(cfg Config) (*Daemon, error) {
	cfg.defaults()
	if cfg.Socket == "" || len(cfg.Stores) == 0 {
		return nil, errors.New("a daemon needs a socket and a store")
	}
	ln, lock, err := listen(cfg.Socket, cfg.SocketMode, cfg.SocketGroup)
	if err != nil {
		return nil, err
	}
	d := &Daemon{cfg: cfg, log: cfg.Log, clock: renewer.Boottime, ln: ln, lock: lock,
		halt: make(chan struct{}), conns: make(map[*conn]struct{})}
	if d.peers, err = newPeerWatcher(); err != nil {
		d.closeSocket()
		_ = lock.Close()
		return nil, err
	}
	d.now.Store(&cfg.Serving)
	table := cache.DefaultConfig()
	table.MaxHolds, table.MaxWaiters = int64(cfg.Limits.MaxHolds), int64(cfg.Limits.MaxWaiters)
	table.Seed = rand.Uint64()
	d.engine = NewEngine(Settings{
		Table: table, MaxFrame: cfg.Limits.MaxFrame, OutBuffer: cfg.Limits.OutBuffer, Version: cfg.Version,
		InFlight: 2, BatchSize: upstream.MaxBatch,
	}, d.clock, func(at int64) { d.timer.Wake(at) })
	d.engine.cycles.found = d.logCycle
	d.stores = newStores(d)
	if err = d.stores.add(cfg.Stores); err == nil {
		err = d.engine.Route(cfg.Namespaces)
	}
	if err == nil {
		d.timer, err = renewer.NewTimer(d.engine.Tick)
	}
	if err != nil {
		d.peers.close()
		d.closeSocket()
		_ = lock.Close()
		return nil, err
	}
	return d, nil
}

// Reload changes what is served and how; on an error nothing has changed. Stores
// that are in both keep what they have; a new one is taken into use, and one that
// is gone is closed when nothing is held there any more.
func (d *Daemon) Reload(next Serving) error {
	next.defaults()
	if err := d.stores.change(next.Stores, next.Namespaces); err != nil {
		return err
	}
	d.engine.SetLimits(next.Limits)
	d.now.Store(&next)
	return nil
}

// Serve answers clients until ctx is done, then drains: no new acquires, holders
// get the drain time, and what is left is released when its client has been told.
// It returns when every goroutine has ended.
func (d *Daemon) Serve(ctx context.Context) error {
	d.stores.start()
	d.wg.Go(d.accept)

	select {
	case <-ctx.Done():
		d.drain()
	case <-d.halt:
	}
	d.Stop()
	d.closeSocket()
	d.wg.Wait()
	d.settle()
	d.timer.Close()
	d.stores.close()
	d.peers.close()
	_ = d.lock.Close() // last: from here on a successor may serve
	return nil
}

// closeSocket takes the socket away, while it is still sure to be ours.
func (d *Daemon) closeSocket() {
	_ = d.ln.Close()
	_ = os.Remove(d.cfg.Socket)
}

// Stop ends the daemon at once. What clients hold is not given back: it stays
// closed until the stated validity is over.
func (d *Daemon) Stop() { d.haltOnce.Do(func() { close(d.halt) }) }

// BytesRead is how much clients have sent so far.
func (d *Daemon) BytesRead() uint64 { return d.read.Load() }

func (d *Daemon) halted() bool {
	select {
	case <-d.halt:
		return true
	default:
		return false
	}
}

func (d *Daemon) accept() {
	for {
		nc, err := d.ln.AcceptUnix()
		if err != nil {
			if d.halted() || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, most likely: those that we have go on.
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

// admit begins a session on a connection, or refuses it.
func (d *Daemon) admit(nc *net.UnixConn) {
	refuse := func(c protocol.Code, msg string) {
		_ = nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = nc.Write(protocol.AppendFatal(nil, c, msg))
		_ = nc.Close()
	}
	raw, err := nc.SyscallConn()
	if err != nil {
		_ = nc.Close()
		return
	}
	if d.engine.draining.Load() {
		refuse(protocol.Draining, "the daemon is going away")
		return
	}
	c := newConn(d, nc, raw)
	d.mu.Lock()
	full := len(d.conns) >= d.now.Load().Limits.MaxConns
	if !full {
		d.conns[c] = struct{}{}
	}
	d.mu.Unlock()
	if full {
		refuse(protocol.Limit, "the daemon has as many connections as it may")
		return
	}
	var peer Peer
	peer, c.peer = d.peers.watch(raw, c.leaveNow)
	c.s = d.engine.Open(peer, c)
	d.wg.Go(func() {
		quiet := time.AfterFunc(d.now.Load().Limits.MaxSilent, func() {
			if c.s.client.Load() == nil {
				c.s.Fatal(protocol.BadFrame, "no hello")
			}
		})
		defer quiet.Stop()
		c.serve()
	})
}

// leaveNow is the peer watch's word that the process has ended, whoever else may
// have the socket.
func (c *conn) leaveNow() {
	c.leave()
	_ = c.nc.CloseRead()
}

func (d *Daemon) forget(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
	if len(d.conns) == 0 && d.empty != nil {
		close(d.empty)
		d.empty = nil
	}
}

// whenEmpty is closed once no connection is left.
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
