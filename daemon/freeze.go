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

// longAgo is a deadline that has passed. Reads and writes of a socket with that deadline return at
// once.
var longAgo = time.Unix(1, 0)

// queryTime is how long a freeze waits for queries of stores before it cancels them.
const queryTime = 100 * time.Millisecond

var errSlowFreeze = errors.New("store requests still in flight at the freeze deadline")

// queryDeadline returns when a freeze that must be complete at end cancels the queries of stores.
// It leaves at least half of the time for everything that the freeze does after that.
func queryDeadline(end time.Time) time.Time {
	return time.Now().Add(min(queryTime, time.Until(end)/2))
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
// markTransferred. It waits until end for the requests that are in flight. The caller holds
// Daemon.transferring. After an error of freeze it calls thaw, as after success.
//
// First freeze stops the sources of requests: accept and the readers. Then it stops the timer and
// the stores, which act without requests. After that only the sessions' reapers can act. The
// writers stop last, when no goroutine is left that could start one.
func (d *Daemon) freeze(end time.Time) error {
	d.freezing.Lock()
	d.frozeAt = time.Now()
	d.cfg.Takeover(true)
	d.frozen.Store(true)
	d.mu.Lock()
	d.stopRunning()
	d.mu.Unlock()
	_ = d.site.Listener.SetDeadline(longAgo)
	d.accepting.Wait()
	conns := d.connections()
	for _, c := range conns { // all deadlines before the first wait, so that the readers end together
		_ = c.sock.SetReadDeadline(longAgo)
	}
	for _, c := range conns {
		c.reader.Wait()
	}
	if d.await(queryDeadline(end), d.stores.queriesRunning) != nil {
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

// markTransferred ends a freeze after a takeover. The other process serves from now on, and this
// process only ends: Serve returns ErrTakenOver.
func (d *Daemon) markTransferred() {
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

// await waits until left returns 0. It returns an error if that takes longer than until end.
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

// pause stops new requests to the stores, and events from them. Requests in flight continue. The
// caller holds Daemon.transferring until resume, so the list of stores does not change.
func (s *storeSet) pause() {
	for _, v := range s.list() {
		v.upkeep.Pause()
		v.pump.Pause()
		v.paused = true
	}
}

// cutIfDown cancels the batches in flight to stores that are down. The pumps then refuse the queued
// ops, so that the requests that wait for them are answered before the freeze.
func (s *storeSet) cutIfDown() {
	for _, v := range s.list() {
		v.pump.CutIfDown()
	}
}

// resume ends a pause, and tells the stores that this process keeps them. It reports whether there
// was a pause.
func (s *storeSet) resume() (paused bool) {
	for _, v := range s.list() {
		if v.left {
			v.left = false
			v.Store.Capabilities().Mover.Stay()
		}
		if v.paused {
			v.paused, paused = false, true
			v.pump.Resume()
			v.upkeep.Resume()
		}
	}
	return paused
}

func (s *storeSet) list() []*runningStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// queriesRunning returns the number of store queries in progress.
func (s *storeSet) queriesRunning() int { return int(s.queries.Load()) }
