package daemon

import (
	"fmt"
	"maps"
	"net"
	"os"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/peer"
	"github.com/locksidecar/locksidecar/upstream"
)

// The side of the process that takes over.

// TakeoverState is the state that a daemon offers for a takeover, or has left as parked state.
type TakeoverState struct {
	c     *net.UnixConn // nil for a parked state
	offer offer
	locks map[string]*os.File
	left  *parkedState // the parked state; nil when a daemon serves
}

// PID returns the id of the process that serves.
func (e *TakeoverState) PID() int { return e.offer.PID }

// Successor returns the information that is needed to open a store by its name. It is nil if the daemon has no store of
// that name, or one that cannot be taken over.
func (e *TakeoverState) Successor(store string) *upstream.Successor {
	if e == nil {
		return nil
	}
	for _, s := range e.offer.Stores {
		if s.Name == store && s.Moves && !e.isGone(store) {
			return &upstream.Successor{Identity: s.Identity, Lock: e.locks[store]}
		}
	}
	return nil
}

// Seen returns the result of the other process's Config.Seen. It is empty if there is none, as with older versions.
func (e *TakeoverState) Seen() []byte { return e.offer.Seen }

// Lost returns the names of the stores whose leases cannot be taken over.
func (e *TakeoverState) Lost() (names []string) {
	for _, s := range e.offer.Stores {
		if !s.Moves {
			names = append(names, s.Name)
		}
	}
	return names
}

// Close discards the takeover state. The daemon that serves continues.
func (e *TakeoverState) Close() {
	if e.left != nil {
		e.left.files.close()
	} else {
		_ = e.c.Close()
	}
	for _, f := range e.locks {
		_ = f.Close()
	}
}

// inherited has the state with which a daemon that has taken over begins.
type inherited struct {
	conns []*conn
	begin []func()
	lost  []*engine.StoreLane
	gone  []*engine.StoreLane // stand-ins for stores that this process does not have
}

// Inherit makes a daemon that replaces the one that serves. If it returns without an error, the other daemon serves no
// more. After an error the other daemon continues, and this process has to end. The stores are those of cfg, each opened
// with its Successor.
func (e *TakeoverState) Inherit(cfg Config) (*Daemon, error) {
	cfg.defaults()
	has := prepared{make(map[string]string)}
	for _, s := range cfg.Stores {
		has.Stores[s.Name] = s.Key
	}
	refused := e.left == nil && !e.accepts(has)
	if cfg.Commit != nil && !refused { // before the other process freezes
		if err := cfg.Commit(); err != nil {
			return nil, err
		}
	}
	if e.left != nil {
		return e.inheritLeft(cfg, has)
	}
	if err := putMessage(e.c, has, nil); err != nil {
		return nil, err
	}
	in, what, err := e.receive()
	if err != nil {
		return nil, err
	}
	defer in.close()
	if refused {
		return nil, errPassing
	}
	snapshot, err := in.memory()
	if err != nil {
		return nil, err
	}
	d, err := e.take(cfg, what, snapshot, in)
	if err != nil {
		return nil, err
	}
	if err = putMessage(e.c, ready{}, nil); err == nil {
		err = e.committed()
	}
	if err != nil {
		d.abandonTakeover()
		return nil, err
	}
	_ = e.c.Close()
	d.site.shared = false
	return d, nil
}

// accepts reports whether the process that serves allows a takeover by a process with these stores. See makeOffer.
func (e *TakeoverState) accepts(has prepared) bool {
	return !slices.ContainsFunc(e.offer.Stores, func(s offered) bool {
		key, ok := has.Stores[s.Name]
		return !ok || key != s.Key
	})
}

// take makes the daemon. It changes nothing that the other process uses.
func (e *TakeoverState) take(cfg Config, what stateMessage, snapshot []byte, in *passed) (d *Daemon, err error) {
	m := &daemonSnapshot{Coder: &cache.Coder{B: snapshot, Reading: true}, stores: make(map[string][]byte)}
	if m.code(); m.Err != nil {
		return nil, m.Err
	}
	at := &site{admin: make(map[string]net.Listener), shared: true}
	defer func() {
		if err != nil {
			at.closePassed()
		}
	}()
	for _, name := range what.Admin {
		if at.admin[name], err = in.listener(); err != nil {
			return nil, err
		}
	}
	ln, err := in.listener()
	if err != nil {
		return nil, err
	}
	unixLn, ok := ln.(*net.UnixListener)
	if !ok {
		_ = ln.Close()
		return nil, errPassing
	}
	unixLn.SetUnlinkOnClose(false)
	at.ln, at.lock = unixLn, in.next()
	if at.lock == nil {
		return nil, errPassing
	}
	switch {
	case cfg.Listener != nil: // the service manager has passed this process the socket anew
		_ = unixLn.Close()
		at.ln = cfg.Listener
	case !e.offer.Owned:
		cfg.Listener = unixLn
	}
	if d, err = assemble(cfg, at); err != nil {
		return nil, err
	}
	d.takeoverBegins(true)
	d.timer.Pause() // no client gets output before begin
	if d.inherited, err = d.inherit(e, m, in); err != nil {
		d.abandonTakeover()
		return nil, err
	}
	return d, nil
}

// closePassed closes the sockets and files that another process has passed on, so that this one can make them anew.
// Some of them may be closed already.
func (p *site) closePassed() {
	for _, ln := range p.admin {
		if ln != nil {
			_ = ln.Close()
		}
	}
	if p.ln != nil {
		_ = p.ln.Close()
	}
	if p.lock != nil {
		_ = p.lock.Close()
	}
}

// inherit restores the engine, the stores and the connections from the passed state.
func (d *Daemon) inherit(e *TakeoverState, m *daemonSnapshot, in *passed) (*inherited, error) {
	gone, err := e.standIns(d.engine)
	if err != nil {
		return nil, err
	}
	sessions, err := d.engine.Take(m.engine, gone)
	if err != nil {
		return nil, err
	}
	if len(sessions) != len(m.conns) {
		return nil, errPassing
	}
	h := &inherited{gone: slices.Collect(maps.Values(gone))}
	for _, v := range d.stores.list() {
		state, there := m.stores[v.lane.Name()]
		mv := upstream.Moves(v.StoreConfig.Store)
		switch {
		case e.isGone(v.lane.Name()): // the earlier process had another store of this name
		case there && mv != nil:
			begin, err := mv.Arrive(state)
			if err != nil {
				return nil, fmt.Errorf("store %s: %w", v.lane.Name(), err)
			}
			h.begin = append(h.begin, begin)
		case there:
			return nil, fmt.Errorf("store %s: %w", v.lane.Name(), errPassing)
		default:
			h.lost = append(h.lost, v.lane)
		}
	}
	for i, s := range sessions {
		c, err := d.inheritConn(s, &m.conns[i], in)
		if err != nil {
			return nil, err
		}
		h.conns = append(h.conns, c)
	}
	return h, nil
}

func (d *Daemon) inheritConn(s *engine.Session, k *connSnapshot, in *passed) (*conn, error) {
	nc, err := in.conn()
	if err != nil {
		return nil, err
	}
	c := newConn(d, nc)
	c.s, c.input, c.unsent, c.closed = s, slices.Grow(k.input, readBuffer), k.unsent, s.Closing()
	c.writing = len(k.unsent) > 0
	c.peer = &peer.Watch{}
	if k.watched {
		f := in.next()
		if f == nil {
			return nil, errPassing
		}
		defer f.Close()
		c.peer = d.peers.Adopt(f, c.leaveNow)
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
	if !d.engine.Abandon(h.gone) { // reroutes, too: this process' configuration may refuse some of the inherited waits
		d.log.Error("a store that this process does not have is still in use")
	}
	for _, u := range h.lost {
		d.engine.NotTakenOver(u)
	}
	for _, u := range d.engine.Stores() {
		if u.Down() != nil { // the pump finds out whether it still is
			d.engine.StoreUp(u)
		}
	}
	d.stores.start() // after these, because it brings news of the stores that is later than the takeover state
	for _, c := range h.conns {
		c.awaitHello()
		c.run()
		c.Flush()
	}
	d.timer.Wake(d.engine.Tick())
	d.timer.Resume()
	d.takeoverBegins(false)
}

// abandonTakeover ends a daemon whose takeover has failed. It changes nothing that the other process uses.
func (d *Daemon) abandonTakeover() {
	d.takeoverBegins(false)
	d.timer.Resume()
	for c := range d.conns {
		_ = c.sock.Close()
		c.peer.Close()
	}
	d.discard()
}
