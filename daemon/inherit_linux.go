package daemon

import (
	"fmt"
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/listen"
	"github.com/locksidecar/locksidecar/daemon/peer"
	"github.com/locksidecar/locksidecar/daemon/takeover"
)

// This file has the successor's side of a takeover: it restores the state of the other process.

// inherited has what a successor does with its state when it begins to serve.
type inherited struct {
	conns []*conn
	begin []func()            // start the stores whose state was passed on: see upstream.Mover
	lost  []*engine.StoreLane // stores whose leases could not be taken over
	gone  []*engine.StoreLane // stand-ins for stores that this process does not have
}

// Inherit makes a daemon that replaces the serving one. If it returns no error, the other daemon
// has stopped serving. After an error the other daemon continues to serve, and this process has to
// end. The caller has opened each store of cfg with its State.Successor.
func Inherit(s *takeover.State, cfg Config) (*Daemon, error) {
	cfg.defaults()
	stores := make(map[string]string)
	for _, st := range cfg.Stores {
		stores[st.Name] = st.Key
	}
	// Commit comes before Receive, because it may take long, and Receive freezes the other process.
	if cfg.Commit != nil && s.Accepts(stores) {
		if err := cfg.Commit(); err != nil {
			return nil, err
		}
	}
	in, err := s.Receive(stores)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if s.Parked() {
		return takeParked(s, cfg, in)
	}
	d, err := take(s, cfg, in)
	if err != nil {
		return nil, err
	}
	if err := s.AwaitCommit(); err != nil {
		d.abandonTakeover()
		return nil, err
	}
	d.site.shared = false
	return d, nil
}

// takeParked makes the daemon from a parked state. After an error no daemon serves, so the caller
// of Inherit may start a daemon without that state, with the same cfg.
func takeParked(s *takeover.State, cfg Config, in *takeover.Received) (d *Daemon, err error) {
	if was := s.Socket(); was != cfg.Socket {
		return nil, fmt.Errorf("%w: it belongs to socket %s, and this process serves %s",
			takeover.ErrParked, was, cfg.Socket)
	}
	given := cfg.Listener
	if given != nil { // take closes its listener after an error, and the caller may need given then
		if cfg.Listener, err = listen.Duplicate(given); err != nil {
			return nil, fmt.Errorf("%w: %w", takeover.ErrParked, err)
		}
	}
	if d, err = take(s, cfg, in); err != nil {
		return nil, fmt.Errorf("%w: %w", takeover.ErrParked, err)
	}
	if given != nil {
		_ = given.Close()
	}
	d.site.shared = false
	return d, nil
}

// take makes the daemon from the received state. It changes nothing that the other process uses.
func take(s *takeover.State, cfg Config, in *takeover.Received) (d *Daemon, err error) {
	state, err := takeover.DecodeSnapshot(in.Snapshot)
	if err != nil {
		return nil, err
	}
	var at *site
	defer func() {
		if err != nil && at != nil { // so that this process can make the sockets itself
			at.Close()
		}
	}()
	if at, err = passedSite(s, &cfg, in); err != nil {
		return nil, err
	}
	if d, err = assemble(cfg, at); err != nil {
		return nil, err
	}
	d.cfg.Takeover(true)
	d.timer.Pause() // the timer may send output, and no client may get any before begin
	if d.inherited, err = d.inherit(s, state, in); err != nil {
		d.abandonTakeover()
		return nil, err
	}
	return d, nil
}

// passedSite returns the site with the received sockets. A parked state in a file has no sockets,
// so passedSite makes them.
func passedSite(s *takeover.State, cfg *Config, in *takeover.Received) (at *site, err error) {
	if lock := s.SocketLock(); lock != nil {
		return lockedSite(cfg, lock)
	}
	at = &site{shared: true}
	if at.Sockets, err = in.Sockets(); err != nil {
		at.Close()
		return nil, err
	}
	switch {
	case cfg.Listener != nil: // this process has got the socket from the service manager, too
		_ = at.Listener.Close()
		at.Listener = cfg.Listener
	case !s.OwnsSocket():
		cfg.Listener = at.Listener
	}
	return at, nil
}

// inherit restores the engine, the stores and the connections from the received state.
func (d *Daemon) inherit(
	s *takeover.State, from *takeover.Snapshot, in *takeover.Received,
) (*inherited, error) {
	gone, err := s.StandIns(d.engine)
	if err != nil {
		return nil, err
	}
	sessions, err := d.engine.Take(from.Engine, gone)
	if err != nil {
		return nil, err
	}
	if len(sessions) != len(from.Conns) {
		return nil, takeover.ErrMessage
	}
	h := &inherited{gone: slices.Collect(maps.Values(gone))}
	for _, v := range d.stores.list() {
		state, there := from.Stores[v.lane.Name()]
		mv := v.Store.Capabilities().Mover
		switch {
		case s.IsGone(v.lane.Name()): // the earlier process had a different store of this name
		case there && mv != nil:
			begin, err := mv.Arrive(state)
			if err != nil {
				return nil, fmt.Errorf("store %s: %w", v.lane.Name(), err)
			}
			h.begin = append(h.begin, begin)
		case there:
			return nil, fmt.Errorf("store %s: %w", v.lane.Name(), takeover.ErrMessage)
		default:
			h.lost = append(h.lost, v.lane)
		}
	}
	for i, session := range sessions {
		c, err := d.inheritConn(session, &from.Conns[i], in)
		if err != nil {
			return nil, err
		}
		h.conns = append(h.conns, c)
	}
	return h, nil
}

// inheritConn restores the connection of session s from its state k.
func (d *Daemon) inheritConn(
	s *engine.Session, k *takeover.Conn, in *takeover.Received,
) (*conn, error) {
	nc, err := in.Conn()
	if err != nil {
		return nil, err
	}
	c := newConn(d, nc)
	c.s, c.input, c.unsent, c.closed = s, slices.Grow(k.Input, readBuffer), k.Unsent, s.Closing()
	c.writing = len(k.Unsent) > 0
	c.peer = &peer.Watch{}
	if k.Watched {
		f := in.Next()
		if f == nil {
			return nil, takeover.ErrMessage
		}
		defer f.Close()
		c.peer = d.peers.Adopt(f, c.processEnded)
	}
	s.SetTransport(c)
	if s.Killed() {
		c.Kill()
	}
	d.mu.Lock()
	d.conns[c] = struct{}{}
	d.mu.Unlock()
	return c, nil
}

// begin starts to serve with the inherited state, as it was when the other process froze.
func (d *Daemon) begin(h *inherited) {
	d.admin.CloseUnused()
	for _, begin := range h.begin {
		begin()
	}
	// Abandon also applies this process's routes, which may refuse some of the inherited waits.
	if !d.engine.Abandon(h.gone) {
		d.log.Error("a store that this process does not have is still in use")
	}
	for _, sl := range h.lost {
		d.engine.NotTakenOver(sl)
	}
	for _, sl := range d.engine.Stores() {
		if sl.Down() != nil { // the store may be up by now; otherwise its pump reports it as down again
			d.engine.StoreUp(sl)
		}
	}
	// The stores start last, because their news is more recent than the takeover state.
	d.stores.start()
	for _, c := range h.conns {
		c.awaitHello()
		c.run()
		c.Flush()
	}
	d.timer.Wake(d.engine.Tick())
	d.timer.Resume()
	d.cfg.Takeover(false)
}

// abandonTakeover ends a daemon whose takeover has failed. It changes nothing that the other
// process uses.
func (d *Daemon) abandonTakeover() {
	d.cfg.Takeover(false)
	d.timer.Resume()
	for c := range d.conns {
		_ = c.sock.Close()
		c.peer.Close()
	}
	d.discard()
}
