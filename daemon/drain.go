package daemon

import (
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// partTime is what clients get to close their side once they have been told that
// it is over.
const partTime = 2 * time.Second

// Drain begins the end: no new acquires, waits are refused, everybody is told.
func (e *Engine) Drain(drain time.Duration) {
	e.draining.Store(true)
	a := getAftermath()
	defer putAftermath(a)
	now := e.clock()
	for i := range e.shards {
		sh := e.lock(i)
		sh.table.RefuseWaits(cache.CodeDraining, now, &sh.out)
		sh.table.EndLinger(now, &sh.out)
		e.unlock(sh, i, now, a)
	}
	for _, s := range e.all() {
		s.write(a, func(b []byte) []byte { return protocol.AppendGoingAway(b, ms(drain), "the daemon is stopping") })
	}
	e.finish(a, now, nil)
}

// Shut counts and logs what is still held as lost. Nobody is told: the sessions are to end now.
func (e *Engine) Shut() {
	e.everywhere(func(t *cache.Table, now int64, out *cache.Effects) { t.Shut(now, out) })
}

func (e *Engine) all() []*Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*Session, 0, len(e.sessions))
	for _, s := range e.sessions {
		all = append(all, s)
	}
	return all
}

// Held is how many holds there are.
func (e *Engine) Held() int64 {
	var n int64
	for _, s := range e.all() {
		n += s.core.Holds.Load()
	}
	return n
}

// drain gives holders the drain time. It ends the sessions once nothing is held and every request is
// answered, or when that time is over. Then it waits briefly for their clients to disconnect.
func (d *Daemon) drain() {
	d.log.Info("draining", zap.String("event", "draining"), zap.Duration("for", d.now.Load().Drain), zap.Int64("held", d.engine.Held()))
	d.engine.Drain(d.now.Load().Drain)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	end := time.NewTimer(d.now.Load().Drain)
	defer end.Stop()
	for !d.drained() {
		select {
		case <-poll.C:
			continue
		case <-d.halt:
			return
		case <-end.C:
		}
		break
	}
	d.engine.Shut()
	empty := d.whenEmpty()
	for _, s := range d.engine.all() {
		c := s.transport.(*conn)
		c.handling.Lock() // a request that is being handled is answered first
		s.Fatal(protocol.Draining, "the daemon is stopping")
		c.handling.Unlock()
	}
	part := time.NewTimer(partTime)
	defer part.Stop()
	select {
	case <-empty:
	case <-part.C:
		d.log.Warn("clients did not part", zap.String("event", "drain_cut"), zap.Int64("held", d.engine.Held()))
	case <-d.halt:
	}
}

// drained reports whether nothing is held and no client waits for a store's answer.
func (d *Daemon) drained() bool {
	if d.engine.Held() > 0 {
		return false
	}
	for _, s := range d.engine.all() { // wait until the last release is in its store's lane
		c := s.transport.(*conn)
		c.handling.Lock()
		c.handling.Unlock() //nolint:staticcheck // see handling
	}
	return d.stores.asked() == 0 && d.engine.unanswered() == 0
}

// unanswered counts the queued ops and the batches in flight of stores that are up, except renewals.
func (e *Engine) unanswered() (n int) {
	for _, u := range e.stores() {
		if w, f := u.main.Depth(); u.Down() == nil {
			n += w + f
		}
	}
	return n
}

// ending counts the queued releases, and the batches of them in flight, of pairs that are down.
func (e *Engine) ending() (n int) {
	for _, u := range e.stores() {
		w, f := u.ends.Depth()
		n += w + f
	}
	return n
}

// settle waits, a little, until the store has confirmed what was released.
func (d *Daemon) settle() {
	end := time.NewTimer(partTime)
	defer end.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		left := d.engine.unanswered() + d.engine.ending()
		if left == 0 {
			return
		}
		select {
		case <-poll.C:
		case <-end.C:
			d.log.Warn("releases not confirmed", zap.String("event", "settle_cut"), zap.Int("waiting", left))
			return
		}
	}
}
