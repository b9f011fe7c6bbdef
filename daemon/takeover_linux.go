package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/takeover"
)

// This file has the serving process's side of a takeover. Package takeover describes the messages.

const (
	prepareTime = time.Minute     // how long the successor may take to open its stores
	maxFreeze   = 5 * time.Second // the longest freeze of this process
	// ttlShare is the part of the shortest TTL that a freeze may last, because renewals wait.
	ttlShare = 10
	// validityShare is the part of the shortest stated validity that a freeze may last. Keepalives
	// are sent after a third of it, and so are the pings that a heartbeat requires.
	validityShare = 3
)

// takeoverHandler returns the function that serves a process which wants to take over.
func (d *Daemon) takeoverHandler() func(*net.UnixConn) { return d.transfer }

// transfer carries out the takeover by the process at the other end of c. After an error this
// process continues.
func (d *Daemon) transfer(c *net.UnixConn) {
	_ = c.SetDeadline(time.Now().Add(prepareTime))
	var other takeover.Request
	if _, err := takeover.Receive(c, &other); err != nil {
		return
	}
	<-d.started
	if !d.lockTransferring() {
		const busy = "the daemon is ending, reloading or already being taken over"
		_ = takeover.Send(c, takeover.Offer{Refused: busy}, nil)
		return
	}
	defer d.transferring.Unlock()
	if isClosed(d.transferred) || d.halted() {
		return
	}
	defer d.closeOnEnd(c)()
	if err := takeover.Give(c, other, giver{d}); err != nil {
		log := d.log.With(zap.String("event", "takeover_failed"), zap.Int("pid", other.PID))
		if isClosed(d.ending) { // End has closed c
			log.Error("takeover canceled; this process ends", zap.Error(errEnding))
		} else {
			log.Error("takeover failed; this process continues to serve", zap.Error(err))
		}
		return
	}
	d.log.Info("another process has taken over",
		zap.String("event", "taken_over"), zap.Int("pid", other.PID),
		zap.String("version", other.Version), zap.Duration("frozen_for", time.Since(d.frozeAt)))
	d.markTransferred()
}

var errEnding = errors.New("the daemon has been told to end")

// closeOnEnd closes c when End is called, which makes the takeover fail. The function that it
// returns ends this and waits for the goroutine.
func (d *Daemon) closeOnEnd(c *net.UnixConn) (stop func()) {
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-d.ending:
			_ = c.Close()
		case <-done:
		}
	})
	return func() {
		close(done)
		watch.Wait()
	}
}

// giver makes d a takeover.Giver.
type giver struct{ d *Daemon }

// Offer refuses a takeover if the daemon is about to end.
func (g giver) Offer() (o takeover.Offer, locks []int, err error) {
	if isClosed(g.d.ending) || g.d.engine.Draining() {
		return o, nil, errEnding
	}
	return g.d.offer()
}

func (g giver) FreezeTime() time.Duration { return g.d.freezeTime() }

func (g giver) Freeze(end time.Time) error { return g.d.freeze(end) }

func (g giver) Thaw() { g.d.thaw() }

// Commit tells the service manager that the successor is the main process, before write makes it
// so. If write fails, Commit names this process again.
func (g giver) Commit(successor takeover.Request, write func() error) error {
	if isClosed(g.d.ending) {
		return errEnding
	}
	g.d.cfg.TakenOver(successor.PID)
	err := write()
	if err != nil {
		g.d.cfg.TakenOver(os.Getpid())
	}
	return err
}

// Leave returns the snapshot of the daemon, and adds its descriptors to files.
func (g giver) Leave(files *takeover.Files) ([]byte, takeover.Contents, error) {
	var contents takeover.Contents
	snapshot, conns, err := g.d.snapshot()
	if err != nil {
		return nil, contents, err
	}
	before := len(files.All())
	contents.Admin, err = files.AddSockets(&takeover.Sockets{Admin: g.d.admin.Listeners(),
		Listener: g.d.site.Listener, Lock: g.d.site.Lock})
	for _, k := range conns {
		if err == nil {
			err = k.addTo(files)
		}
	}
	contents.Files = len(files.All()) - before + 1 // 1 for the memory file, which the caller adds
	return snapshot, contents, err
}

// offer returns the daemon's offer to its successor, and the descriptors of the offered lock files.
// It first closes the stores that a reload has dropped. It fails if one of them still has users.
func (d *Daemon) offer() (o takeover.Offer, locks []int, err error) {
	if err := d.stores.closeDropped(); err != nil {
		return o, nil, err
	}
	o = takeover.Offer{Form: takeover.Form, Version: d.cfg.Version, PID: os.Getpid(),
		Socket: d.cfg.Socket, Owned: d.cfg.Listener == nil}
	if d.cfg.Seen != nil {
		o.Seen = d.cfg.Seen()
	}
	for _, v := range d.stores.list() {
		one := takeover.OfferedStore{Name: v.lane.Name(), Key: v.Key, Locked: v.Lock != nil,
			Info: v.Store.Info(), Parts: v.Parts}
		if m := v.Store.Capabilities().Mover; m != nil {
			one.Moves, one.Identity = true, m.Identity()
		}
		if one.Locked {
			locks = append(locks, int(v.Lock.Fd()))
		}
		o.Stores = append(o.Stores, one)
	}
	return o, locks, nil
}

// freezeTime returns how long the daemon may be frozen.
func (d *Daemon) freezeTime() time.Duration {
	ttl, validity := d.engine.Shortest()
	return min(maxFreeze, ttl/ttlShare, validity/validityShare)
}

// addTo adds the connection's descriptors to files.
func (c *conn) addTo(files *takeover.Files) error {
	err := c.sock.Control(func(fd int) error {
		files.AddFD(fd)
		return nil
	})
	if fd := c.peer.FD(); fd >= 0 {
		files.AddFD(fd)
	}
	return err
}

// snapshot returns the whole state of the daemon, and its connections in the order of the snapshot.
func (d *Daemon) snapshot() ([]byte, []*conn, error) {
	state := &takeover.Snapshot{Stores: make(map[string][]byte)}
	var sessions []*engine.Session
	var err error
	if state.Engine, sessions, err = d.engine.Snapshot(); err != nil {
		return nil, nil, err
	}
	for _, v := range d.stores.list() {
		if mv := v.Store.Capabilities().Mover; mv != nil {
			if state.Stores[v.lane.Name()], err = mv.Leave(); err != nil {
				return nil, nil, fmt.Errorf("store %s: %w", v.lane.Name(), err)
			}
			v.left = true
		}
	}
	var conns []*conn
	for _, s := range sessions {
		c := s.Transport().(*conn)
		conns = append(conns, c)
		state.Conns = append(state.Conns,
			takeover.Conn{Input: c.input, Unsent: c.unsent, Watched: c.peer.Active()})
	}
	return state.Encode(), conns, nil
}
