package daemon

import (
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/protocol"
)

// stepTime bounds each wait at the end of a drain: for clients to disconnect after their sessions
// have ended, and for stores to answer.
const stepTime = 2 * time.Second

// drain gives holders the drain time. It ends the sessions once nothing is held and every request
// is answered, or when that time is over. Then it waits briefly for their clients to disconnect.
func (d *Daemon) drain() {
	limit := d.serving.Load().Drain
	d.log.Info("draining", zap.String("event", "draining"), zap.Duration("for", limit),
		zap.Int64("held", d.engine.Held()))
	d.engine.Drain(limit)
	if !poll(20*time.Millisecond, limit, d.halt, d.drained) && d.halted() {
		return
	}
	d.engine.Shut()
	empty := d.whenEmpty()
	for _, s := range d.engine.Sessions() {
		c := s.Transport().(*conn)
		c.handling.Lock() // a request that is being handled is answered first
		s.Fatal(protocol.Draining, "the daemon is stopping")
		c.handling.Unlock()
	}
	over := time.NewTimer(stepTime)
	defer over.Stop()
	select {
	case <-empty:
	case <-over.C:
		d.log.Warn("clients did not disconnect in time", zap.String("event", "drain_cut"),
			zap.Int64("held", d.engine.Held()))
	case <-d.halt:
	}
}

// drained reports whether nothing is held and no client waits for a store's answer.
func (d *Daemon) drained() bool {
	if d.engine.Held() > 0 {
		return false
	}
	for _, s := range d.engine.Sessions() { // wait until the last release is in its store's lane
		c := s.Transport().(*conn)
		c.handling.Lock()
		//lint:ignore SA2001 see handling
		c.handling.Unlock()
	}
	return d.stores.queriesRunning() == 0 && d.engine.Unanswered() == 0
}

// settle waits for a bounded time until the stores have confirmed the releases, and know which
// leases they have to keep.
func (d *Daemon) settle() {
	left := func() int {
		return d.engine.Unanswered() + d.engine.PendingEnds() + d.engine.Unkept()
	}
	if !poll(5*time.Millisecond, stepTime, nil, func() bool { return left() == 0 }) {
		d.log.Warn("releases not confirmed",
			zap.String("event", "settle_cut"), zap.Int("waiting", left()))
	}
}

// poll calls done at each interval until it returns true. It returns false if the time is over
// first, or if stop is closed.
func poll(every, limit time.Duration, stop <-chan struct{}, done func() bool) bool {
	tick := time.NewTicker(every)
	defer tick.Stop()
	end := time.NewTimer(limit)
	defer end.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-stop:
			return false
		case <-end.C:
			return false
		}
	}
	return true
}
