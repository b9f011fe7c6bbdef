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

// The side of the process that takes over.

// inherited has the state with which a daemon that has taken over begins.
type inherited struct {
	conns []*conn
	begin []func()
	lost  []*engine.StoreLane
	gone  []*engine.StoreLane // stand-ins for stores that this process does not have
}

// Inherit makes a daemon that replaces the one that serves. If it returns without an error, the
// other daemon serves no more. After an error the other daemon continues, and this process has to
// end. cfg has the stores, each opened with its Successor.
func Inherit(s *takeover.State, cfg Config) (*Daemon, error) {
	cfg.defaults()
	stores := make(map[string]string)
	for _, st := range cfg.Stores {
		stores[st.Name] = st.Key
	}
	if cfg.Commit != nil && s.Accepts(stores) { // before the other process freezes
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

// takeParked makes the daemon from a parked state. After an error no other daemon serves, so the
// caller of Inherit can use cfg to serve anew.
func takeParked(s *takeover.State, cfg Config, in *takeover.Received) (d *Daemon, err error) {
	if was := s.Socket(); was != cfg.Socket {
		return nil, fmt.Errorf("%w: its socket is %s, and this process serves %s",
			takeover.ErrParked, was, cfg.Socket)
	}
	given := cfg.Listener
	if given != nil { // which the daemon that is made here closes if it fails
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

// take makes the daemon. It changes nothing that the other process uses.
func take(s *takeover.State, cfg Config, in *takeover.Received) (d *Daemon, err error) {
	state, err := takeover.DecodeSnapshot(in.Snapshot)
	if err != nil {
		return nil, err
	}
	var at *site
	defer func() {
		if err != nil && at != nil { // this process may make the sockets anew
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
	d.timer.Pause() // no client gets output before begin
	if d.inherited, err = d.inherit(s, state, in); err != nil {
		d.abandonTakeover()
		return nil, err
	}
	return d, nil
}

// passedSite returns the site with the passed sockets, or makes the sockets if none were passed.
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
	case cfg.Listener != nil: // the service manager has passed this process the socket anew
		_ = at.Listener.Close()
		at.Listener = cfg.Listener
	case !s.OwnsSocket():
		cfg.Listener = at.Listener
	}
	return at, nil
}

// inherit restores the engine, the stores and the connections from the passed state.
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
		case s.IsGone(v.lane.Name()): // the earlier process had another store of this name
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
	s.Carry(c)
	if s.Killed() {
		c.Kill()
	}
	d.mu.Lock()
	d.conns[c] = struct{}{}
	d.mu.Unlock()
	return c, nil
}

// begin continues the inherited state, from the moment at which the other process froze.
func (d *Daemon) begin(h *inherited) {
	d.admin.CloseUnused()
	for _, begin := range h.begin {
		begin()
	}
	// Abandon reroutes, too: this process' configuration may refuse some of the inherited waits.
	if !d.engine.Abandon(h.gone) {
		d.log.Error("a store that this process does not have is still in use")
	}
	for _, sl := range h.lost {
		d.engine.NotTakenOver(sl)
	}
	for _, sl := range d.engine.Stores() {
		if sl.Down() != nil { // the pump finds out whether it still is
			d.engine.StoreUp(sl)
		}
	}
	// It starts after these, because it brings news of the stores that is later than the takeover
	// state.
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
