package cache

import "github.com/locksidecar/locksidecar/protocol"

// This file handles stores that are down, and the grants that this host then makes alone.

// StoreDown tells the table that a store cannot be reached, and why. Until StoreUp the table
// sends only renewals to the store. To a pair, one of whose stores may be reachable, it also
// sends pending releases.
func (t *Table) StoreDown(s *StoreTraits, err error, now int64, out *Effects) {
	st := t.store(s)
	st.err = err
	if st.downAt != 0 {
		return
	}
	st.downAt = max(now, 1)
	t.advanceAll(st, now, out)
}

// StoreUp tells the table that a store can be reached again.
func (t *Table) StoreUp(s *StoreTraits, now int64, out *Effects) {
	st := t.store(s)
	if st.downAt == 0 {
		return
	}
	st.downAt, st.err = 0, nil
	t.advanceAll(st, now, out)
}

// advanceAll advances the leases with an unresolved state at a store. Leases that are held need
// nothing.
func (t *Table) advanceAll(st *storeRecord, now int64, out *Effects) {
	for _, l := range t.sorted() {
		if l.st != st || l.state == stateHeld && !l.held.downgrade {
			continue
		}
		if l.op == 0 {
			l.retryAt = 0
		}
		t.advance(l, now, out)
	}
}

// grantsDegraded reports whether this host may grant l without the store.
func (t *Table) grantsDegraded(l *Lease, now int64) bool {
	st := l.st
	return st.downAt != 0 && l.isLock() && l.state != stateClosed && l.ns.Local && !l.moved() &&
		now-st.downAt >= int64(l.ns.LocalAfter)
}

// serveQueueDegraded grants holds to waiters without the store. When the store is back, the table
// resolves the lease or queue entry that the store may have under this host's token. Then it
// acquires the lease for the holders.
func (t *Table) serveQueueDegraded(l *Lease, now int64, out *Effects) {
	queue := l.queue()
	for w := queue.front(); w != nil; w = queue.front() {
		if l.nHolds > 0 && (w.mode == Exclusive || l.heldMode == Exclusive) {
			break
		}
		if t.turnAway(w, now, out) {
			continue
		}
		if w.keep > 0 {
			t.dismiss(w, protocol.Unsupported, -1, errKeepOutage, now, out)
			continue
		}
		l.extendDegraded(now, w.ttl)
		t.grant(l, w, now, false, out)
	}
	if l.nHolds > 0 {
		t.refuseTries(l, protocol.Busy, -1, now, out)
	}
}

// extendDegraded is called before a validity is stated to the holders of l. It makes holds that
// this host has granted alone valid for ttl from now on.
func (l *Lease) extendDegraded(now, ttl int64) {
	if l.state != stateHeld {
		r := l.withOptional()
		r.degradedUntil = max(r.degradedUntil, now+ttl)
	}
}

// refuseTriesWhileDown refuses the tries that l cannot serve while its store is down.
func (t *Table) refuseTriesWhileDown(l *Lease, now int64, out *Effects) {
	switch {
	case l.nHolds > 0:
		t.refuseTries(l, protocol.Busy, -1, now, out)
	case !l.ns.Local || !l.isLock():
		t.refuseTries(l, protocol.Unavailable, -1, now, out)
	}
}

// degradedAt returns when this host may grant l to its waiters without the store, even if the
// answer to an op is still due. It returns Forever if this host may not, or if l's holders are in
// the way.
func (l *Lease) degradedAt(now int64) int64 {
	switch {
	case l.st.downAt == 0, !l.ns.Local, l.moved(), !l.isLock(), l.queue().empty():
		return Forever
	case l.state == stateHeld && !l.held.starved, l.state == stateClosed: // that state ends first
		return Forever
	}
	at := l.st.downAt + int64(l.ns.LocalAfter)
	if l.nHolds > 0 && at <= now {
		return Forever
	}
	return at
}
