package cache

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file handles reloads, which can move keys to other namespaces and stores. The policy of the
// new namespace applies to a moved key at once. Its lease moves to the new store only when the
// earlier store has, and can have, no claim of this host.

// Admit reports whether a session may acquire a key in a mode for ttl nanoseconds: protocol.OK, or
// the code and the reason of the refusal.
type Admit func(s *Session, key string, mode Mode, ttl int64) (protocol.Code, error)

// Follow sets the namespace of each key to the one that route returns. It advances no lease:
// Reroute does that, and has to be called next. If namespaces have limits, Follow is called for all
// tables before Reroute is called for one. The limits count the holds and waiters of all tables,
// and no table may decide by them before.
func (t *Table) Follow(route func(key string) *Namespace) {
	for l := range t.heads() {
		if ns := route(l.key); ns != l.ns {
			t.follow(l, ns)
		}
	}
}

// follow applies ns to l.
func (t *Table) follow(l *Lease, ns *Namespace) {
	t.setPolicy(l, ns)
	t.advanceLater(l)
}

// advanceLater has Reroute advance l.
func (t *Table) advanceLater(l *Lease) {
	t.toAdvance = append(t.toAdvance, l)
	if l.semaphore() != nil {
		t.toAdvance = append(t.toAdvance, l.claims()...)
	}
}

// Reroute sets the namespace of each key to the one that route returns, ends the waits that admit
// refuses, and shortens those that are longer than MaxWait. The wait of a PartOfRequest counts from
// the beginning of the larger request. Holds stay at their present store until they are released.
func (t *Table) Reroute(route func(key string) *Namespace, admit Admit, now int64, out *Effects) {
	t.Follow(route)
	moved := t.toAdvance
	// From here on, finishMove carries what the earlier store gives.
	t.toAdvance, t.leaving = nil, nil
	for w := range t.waits.all() {
		if code, err := admit(w.req.Session, w.l.key, w.mode, w.ttl); code != protocol.OK {
			moved = append(moved, w.l)
			t.dismiss(w, code, -1, err, now, out)
		} else if longest := int64(w.l.ns.MaxWait); longest > 0 && !w.try {
			since := w.since
			if s, ok := w.req.InternalReply.(PartOfRequest); ok {
				since = s.Since()
			}
			t.shortenWait(w, since+longest)
		}
	}
	inOrder(moved)
	t.advanceEach(moved, now, out)
}

// setPolicy applies ns to l, and moves l's holds and waiters to the counters of ns.
func (t *Table) setPolicy(l *Lease, ns *Namespace) {
	was := l.ns
	l.countMoved(-1)
	l.ns = ns
	l.countMoved(1)
	l.followEpoch()
	t.delayHeartbeat(l, was.Heartbeat)
	was.Use.addHolds(-int64(l.nHolds))
	ns.Use.addHolds(int64(l.nHolds))
	if l.permit() != nil {
		return // its waiters are the semaphore's
	}
	waiters := int64(l.queue().n)
	was.Use.addWaiters(-waiters)
	ns.Use.addWaiters(waiters)
	t.statsOf(was).Waiters -= waiters
	t.statsOf(ns).Waiters += waiters
	if sem := l.semaphore(); sem != nil {
		for _, p := range sem.permits {
			t.setPolicy(&p.Lease, ns)
		}
	}
}

// delayHeartbeat delays the effect of a heartbeat that is stricter than the earlier one, was. The
// owners of l's holds were told a validity under the earlier one, so none is lost as silent before
// it is over.
func (t *Table) delayHeartbeat(l *Lease, was time.Duration) {
	if is := l.ns.Heartbeat; l.nHolds > 0 && is > 0 && (was == 0 || is < was) {
		r := l.withOptional()
		r.silentFrom = max(r.silentFrom, t.deadline(l))
	}
}

// moved reports whether l's key is routed to another store now. A moved lease is released as soon
// as it has no holds.
func (l *Lease) moved() bool { return l.ns.Store != l.st.StoreTraits }

// followEpoch sets the epoch of l to the epoch of its namespace, unless the key has moved. The
// earlier store may still answer then, and its bases are raised by the epoch of the namespace that
// routed the key there.
func (l *Lease) followEpoch() {
	if !l.moved() {
		l.epoch = l.ns.Epoch
	}
}

// countMoved adds n to the count of moved leases at l's store, if l is one.
func (l *Lease) countMoved(n int) {
	if l.moved() && l.semaphore() == nil {
		l.st.moved += n
	}
}

// EachMoved calls f for each held lease whose key is routed to another store than the one where it
// is.
func (t *Table) EachMoved(f func(key string, from, to *StoreTraits)) {
	moved := func(st *storeRecord) bool { return st != nil && st.moved > 0 }
	if !slices.ContainsFunc(t.stores, moved) {
		return
	}
	for l := range t.all() {
		if l.state == stateHeld && l.moved() {
			f(l.key, l.st.StoreTraits, l.ns.Store)
		}
	}
}

// setStore makes l a user of s, and of no other store.
func (t *Table) setStore(l *Lease, s *StoreTraits) {
	if l.st != nil {
		l.countMoved(-1)
		l.st.users--
	}
	l.st = t.store(s)
	l.st.users++
	l.countMoved(1)
	l.followEpoch()
}

// finishMove moves l to the store of its namespace once nothing of l is left at the earlier one.
// The floor moves with it: the earlier store may have answered since the reload.
func (t *Table) finishMove(l *Lease, out *Effects) {
	if !l.moved() || l.state != stateNone || l.op != 0 || l.nHolds > 0 {
		return
	}
	if l.tracked {
		l.tracked = false
		out.Tracks = append(out.Tracks, Track{Lease: l, Store: l.st.ID})
	}
	known := l.st.known(l.epoch)
	t.setStore(l, l.ns.Store)
	l.st.carry(known)
	t.noteSuccess(l) // the earlier store failed, not this one
}
