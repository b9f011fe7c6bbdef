package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// ErrTakenOver is the error of Serve after a takeover.
var ErrTakenOver = errors.New("another process has taken over")

// longAgo is a deadline that has passed: it ends waits for a socket.
var longAgo = time.Unix(1, 0)

// queryTime is how long a freeze waits for queries of stores before it cuts them.
const queryTime = 100 * time.Millisecond

var errSlowFreeze = errors.New("store requests still in flight at the freeze deadline")

// earlier returns a time to cut queries: t, or earlier if they would have less than half of the
// time to end then.
func earlier(t, end time.Time) time.Time {
	if half := time.Now().Add(time.Until(end) / 2); half.Before(t) {
		return half
	}
	return t
}

// transferWait is the longest time that a takeover or a reload waits for another one or for the
// close of a store.
const transferWait = time.Second

// lockTransferring locks Daemon.transferring. It returns false if that takes longer than
// transferWait.
func (d *Daemon) lockTransferring() bool {
	end := time.Now().Add(transferWait)
	for !d.transferring.TryLock() {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// freeze stops all client I/O, store requests, timers and forced unlocks until thaw or
// endTransferred. It waits until end for the requests that are in flight. The caller holds
// Daemon.transferring, and calls thaw even after an error.
//
// First it stops the sources of requests: accept and the readers. Then it stops the timer and the
// stores, which act by themselves. After that only the sessions' reapers can act. The writers
// stop last, when no goroutine is left that could start one.
func (d *Daemon) freeze(end time.Time) error {
	d.freezing.Lock()
	d.froze = time.Now()
	d.cfg.Takeover(true)
	d.frozen.Store(true)
	d.mu.Lock()
	d.stopRunning()
	d.mu.Unlock()
	_ = d.site.Listener.SetDeadline(longAgo)
	d.accepting.Wait()
	conns := d.connections()
	for _, c := range conns {
		_ = c.sock.SetReadDeadline(longAgo)
	}
	for _, c := range conns {
		c.reader.Wait()
	}
	if d.await(earlier(time.Now().Add(queryTime), end), d.stores.queriesRunning) != nil {
		d.mu.Lock()
		d.cutQueries(engine.ErrTakeover)
		d.mu.Unlock()
	}
	if err := d.await(end, func() int {
		d.stores.cutIfDown()
		return d.stores.queriesRunning() + d.engine.MainPending()
	}); err != nil {
		return err
	}
	d.timer.Pause()
	d.stores.pause()
	if err := d.await(end, d.engine.InFlight); err != nil {
		return err
	}
	d.mu.Lock()
	close(d.freezeConns)
	d.mu.Unlock()
	for _, c := range conns {
		c.reaper.Wait()
	}
	for _, c := range conns {
		_ = c.sock.SetWriteDeadline(longAgo)
		c.writer.Wait()
	}
	return nil
}

// thaw ends a freeze. It starts everything again, in the reverse order of freeze.
func (d *Daemon) thaw() {
	d.cfg.Takeover(false)
	d.frozen.Store(false)
	d.mu.Lock()
	d.makeContexts()
	connsFrozen := isClosed(d.freezeConns)
	if connsFrozen {
		d.freezeConns = make(chan struct{})
	}
	d.mu.Unlock()
	conns := d.connections()
	for _, c := range conns { // all of them before any runs, because each may write to any other
		_ = c.sock.SetDeadline(time.Time{})
	}
	for _, c := range conns {
		if connsFrozen {
			c.run()
		} else {
			c.startReader()
		}
	}
	if d.stores.resume() {
		d.timer.Resume()
	}
	_ = d.site.Listener.SetDeadline(time.Time{})
	d.acceptAll()
	d.freezing.Unlock()
}

// endTransferred ends a freeze after a takeover. The other process serves from now on; this one
// stays stopped.
func (d *Daemon) endTransferred() {
	close(d.transferred)
	d.freezing.Unlock()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// makeContexts makes the contexts that a freeze ends. The caller holds mu, or has just made d.
func (d *Daemon) makeContexts() {
	d.running, d.stopRunning = context.WithCancel(context.Background())
	d.queries, d.cutQueries = context.WithCancelCause(context.Background())
}

// querying returns the context of store queries.
func (d *Daemon) querying() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queries
}

// unfrozen returns a context that ends when the next freeze begins. During a freeze the context
// has ended.
func (d *Daemon) unfrozen() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.running
}

// connFreeze returns a channel that is closed when the reapers have to end for a freeze.
func (d *Daemon) connFreeze() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.freezeConns
}

func (d *Daemon) connections() []*conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.conns))
}

// await waits until left returns 0, but not longer than to end.
func (d *Daemon) await(end time.Time, left func() int) error {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		n := left()
		if n == 0 {
			return nil
		}
		if time.Now().After(end) || d.halted() {
			return fmt.Errorf("%w: %d are left", errSlowFreeze, n)
		}
		time.Sleep(pause)
	}
}

// pause stops new requests to the stores and events from them. Requests in flight continue. The
// caller holds Daemon.transferring until resume, so the list of stores does not change.
func (s *storeSet) pause() {
	for _, v := range s.list() {
		v.upkeep.Pause()
		v.pump.Pause()
		v.paused = true
	}
}

// cutIfDown cuts the batches in flight to stores that are down. Then the queued ops are refused,
// and the requests that wait for them are answered.
func (s *storeSet) cutIfDown() {
	for _, v := range s.list() {
		v.pump.CutIfDown()
	}
}

// resume ends a pause. It reports whether there was one.
func (s *storeSet) resume() (was bool) {
	for _, v := range s.list() {
		if v.left {
			v.left = false
			v.Store.Capabilities().Mover.Stay()
		}
		if v.paused {
			v.paused, was = false, true
			v.pump.Resume()
			v.upkeep.Resume()
		}
	}
	return was
}

func (s *storeSet) list() []*runningStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// queriesRunning returns the number of store queries in progress.
func (s *storeSet) queriesRunning() int { return int(s.queries.Load()) }
