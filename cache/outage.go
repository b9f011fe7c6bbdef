package cache

// Stores that are down, and hosts that then decide alone.

// StoreDown tells the table that a store cannot be reached, and why. Until StoreUp the table sends only renewals
// to the store. To a pair, one of whose stores may be reachable, it also sends pending releases.
func (t *Table) StoreDown(s *Store, err error, now int64, out *Effects) {
	st := t.store(s)
	st.err = err
	if st.downAt != 0 {
		return
	}
	st.downAt = max(now, 1)
	t.advanceAll(st, now, out)
}

// StoreUp tells the table that a store can be reached again.
func (t *Table) StoreUp(s *Store, now int64, out *Effects) {
	st := t.store(s)
	if st.downAt == 0 {
		return
	}
	st.downAt, st.err = 0, nil
	t.advanceAll(st, now, out)
}

// advanceAll advances the leases with an unresolved state at a store. Leases that are held need nothing.
func (t *Table) advanceAll(st *storeState, now int64, out *Effects) {
	for _, l := range t.sorted() {
		if l.st != st || l.state == stateHeld && !l.downgrade {
			continue
		}
		if l.op == 0 {
			l.retryAt = 0
		}
		t.advance(l, now, out)
	}
}

// isAlone reports whether this host may grant l without the store.
func (t *Table) isAlone(l *Lease, now int64) bool {
	st := l.st
	return st.downAt != 0 && l.head == nil && l.state != stateClosed && l.ns.Local && !l.moved() && now-st.downAt >= int64(l.ns.LocalAfter)
}

// handoffAlone grants holds to waiters without the store. When the store is back, the table resolves the lease
// or queue entry that the store may have under this host's token. Then it acquires the lease for the holders.
func (t *Table) handoffAlone(l *Lease, now int64, out *Effects) {
	for w := l.waitHead; w != nil; w = l.waitHead {
		if l.nHolds > 0 && (w.mode == Exclusive || l.heldMode == Exclusive) {
			break
		}
		if t.passes(w, now, out) {
			continue
		}
		l.restating(now, w.ttl)
		t.grant(l, w, now, false, out)
	}
	if l.nHolds > 0 {
		t.refuseTries(l, CodeBusy, -1, now, out)
	}
}

// restating is called before a validity is stated to the holders of l. Holds that this host has granted alone
// are valid for ttl from now on.
func (l *Lease) restating(now, ttl int64) {
	if l.state != stateHeld {
		r := l.withOptional()
		r.alone = max(r.alone, now+ttl)
	}
}

// nextDown takes the steps that are possible without the store.
func (t *Table) nextDown(l *Lease, now int64, out *Effects) {
	st := l.st
	if r := l.optional; r != nil && len(r.peeks) > 0 && l.nHolds == 0 {
		l.answerPeeks(Message{Kind: MsgFailed, Code: CodeUnavailable, Left: -1, Err: st.err}, out)
	}
	switch {
	case l.state == stateHeld && l.nHolds == 0 && !l.starved:
		t.beginRelease(l, now, out)
	case (l.state == stateReleasing || l.state == stateClosed) && now >= l.endsAt:
		if t.endReleasing(l, now, out); l.st.downAt == 0 {
			t.next(l, now, out)
			return
		}
	}
	if l.state == stateReleasing && l.releaser.Session != nil {
		out.fail(l.releaser, CodeUnknown, st.err)
		l.releaser = Request{}
	}
	if l.state != stateHeld && l.nHolds > 0 {
		t.refuseTries(l, CodeBusy, -1, now, out)
	} else if l.state != stateHeld && (!l.ns.Local || l.head != nil) {
		t.refuseTries(l, CodeUnavailable, -1, now, out)
	}
	if l.state == stateAsked && l.pointless() {
		t.beginRelease(l, now, out)
	}
	if l.state == stateReleasing && st.Pair && now >= l.retryAt {
		t.settle(l, now, out)
	}
}

// wakeDown returns when l has to be advanced while its store is down.
func (t *Table) wakeDown(l *Lease, now int64) int64 {
	at := Forever
	if l.state == stateReleasing {
		at = l.endsAt
		if l.st.Pair {
			at = min(at, l.retryAt)
		}
	}
	alone := l.st.downAt + int64(l.ns.LocalAfter)
	if l.nWaits > 0 && l.ns.Local && !l.moved() && (l.nHolds == 0 || alone > now) {
		at = min(at, alone)
	}
	return max(at, now+1)
}
