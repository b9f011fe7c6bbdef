package engine

import (
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// Drain refuses all waiters, and new acquires from now on. It tells every session that the daemon
// is stopping, and that holders have the time drain.
func (e *Engine) Drain(drain time.Duration) {
	e.draining.Store(true)
	a := getFollowUp()
	defer putFollowUp(a)
	now := e.clock()
	for i := range e.shards {
		sh := e.lock(i)
		sh.table.RefuseWaits(protocol.Draining, now, &sh.out)
		sh.table.EndLinger(now, &sh.out)
		e.carryOutAndUnlock(sh, now, a)
	}
	for _, s := range e.Sessions() {
		s.write(a, func(b []byte) []byte {
			return protocol.AppendGoingAway(b, ms(drain), "the daemon is stopping")
		})
	}
	e.finish(a, now, nil)
}

// Shut counts and logs the remaining holds as lost. It does not tell their owners: the caller has
// to end the sessions at once.
func (e *Engine) Shut() {
	e.forEachTable(func(t *cache.Table, now int64, out *cache.Effects) { t.Shut(now, out) })
}

// ShutDetached ends the detached holds whose stores free their keys when this process ends, and
// counts and logs them as lost.
func (e *Engine) ShutDetached() {
	e.forEachTable(func(t *cache.Table, now int64, out *cache.Effects) { t.ShutDetached(now, out) })
}

// Sessions returns all sessions, in no order.
func (e *Engine) Sessions() []*Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*Session, 0, len(e.sessions))
	for _, s := range e.sessions {
		all = append(all, s)
	}
	return all
}

// Held returns the number of holds.
func (e *Engine) Held() int64 {
	var n int64
	for _, s := range e.Sessions() {
		n += s.core.Holds.Load()
	}
	return n
}

// Detached counts the detached holds.
func (e *Engine) Detached() (n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, uid := range e.users.withDetached() {
		n += e.users[uid].detached.core.Holds.Load()
	}
	return n
}

// Unanswered counts the queued ops and the batches in flight of stores that are up, except
// renewals.
func (e *Engine) Unanswered() (n int) {
	for _, sl := range e.Stores() {
		if w, f := sl.main.Depth(); sl.Down() == nil {
			n += w + f
		}
	}
	return n
}

// PendingEnds counts the queued releases, and the batches of them in flight, of pairs that are
// down.
func (e *Engine) PendingEnds() (n int) {
	for _, sl := range e.Stores() {
		w, f := sl.ends.Depth()
		n += w + f
	}
	return n
}

// Unkept counts the leases with a keep whose stores do not know yet that they have to keep them
// after the end of the daemon.
func (e *Engine) Unkept() (n int) {
	for i := range e.shards {
		sh := e.lock(i)
		n += sh.table.Unkept(e.clock())
		sh.mu.Unlock()
	}
	return n
}

// Shortest returns the shortest TTL of all leases and the shortest validity that is stated to their
// holders. It returns Forever for both without leases.
func (e *Engine) Shortest() (ttl, validity time.Duration) {
	ttl, validity = time.Duration(cache.Forever), time.Duration(cache.Forever)
	for i := range e.shards {
		sh := e.lock(i)
		t, v := sh.table.Shortest()
		sh.mu.Unlock()
		ttl, validity = min(ttl, time.Duration(t)), min(validity, time.Duration(v))
	}
	return ttl, validity
}

// InFlight counts the batches in flight to stores.
func (e *Engine) InFlight() (n int) {
	for _, sl := range e.Stores() {
		_, f := depth(sl.lanes()...)
		n += f
	}
	return n
}

// MainPending counts the queued ops and the batches in flight of the stores' main lanes.
func (e *Engine) MainPending() (n int) {
	for _, sl := range e.Stores() {
		w, f := sl.main.Depth()
		n += w + f
	}
	return n
}
