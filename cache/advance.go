package cache

// What is requested of the store next.

// advance checks the whole state of l, or of its semaphore, and takes the next step. Every event that
// touches l ends with it. The table may have dropped l afterwards.
func (t *Table) advance(l *Lease, now int64, out *Effects) {
	head := l.head
	if l.sem != nil {
		head = l
	} else {
		t.advanceOne(l, now, out)
	}
	if head != nil {
		t.balance(head, now, out)
	}
}

// advanceEach advances the leases in ls. It skips those that the advance of an earlier one has dropped.
func (t *Table) advanceEach(ls []*Lease, now int64, out *Effects) {
	for _, l := range ls {
		if !l.dropped() {
			t.advance(l, now, out)
		}
	}
}

func (t *Table) advanceOne(l *Lease, now int64, out *Effects) {
	t.expire(l, now, out)
	t.finishMove(l, out)
	t.handoff(l, now, false, out)
	t.answerPeeks(l, now, out)
	if l.shortLived && !l.inMoment(now) {
		t.refuseTries(l, CodeBusy, -1, now, out)
	}
	if l.op == 0 {
		t.next(l, now, out)
	}
	if l.state == stateHeld && (l.rebase || l.doubt) {
		t.renew(l, now, out)
	}
	t.track(l, out)
	if t.idle(l) {
		t.dropLease(l)
		return
	}
	t.arm(l, t.wakeAt(l, now))
}

// needed reports whether a hold or a waiter on this host needs l.
func (l *Lease) needed() bool {
	if l.head != nil {
		return l.head.sem.surplus(l.head) <= 0
	}
	return l.nWaits > 0 || l.nHolds > 0
}

// pointless reports whether the answer to l's acquire is of no use here: l is no longer needed, or its key
// has moved. A degraded hold is an exception: it still needs the lease at the earlier store.
func (l *Lease) pointless() bool { return !l.needed() || l.moved() && l.nHolds == 0 }

// idle reports whether the table can forget l.
func (t *Table) idle(l *Lease) bool {
	return l.state == stateNone && l.op == 0 && !l.needed() && l.renewGen == 0 &&
		(l.optional == nil || len(l.optional.peeks) == 0)
}

// wakeAt returns when l has to be advanced again if no other event concerns it.
func (t *Table) wakeAt(l *Lease, now int64) int64 {
	at, down := l.minEnd, l.st.downAt != 0
	if l.state == stateHeld {
		at = min(at, l.until)
		if idle := l.idleUntil(); idle != 0 && !l.starved {
			at = min(at, max(idle, now+1))
		}
		if l.downgrade && l.op == 0 && l.nHolds > 0 && !down {
			at = min(at, max(l.retryAt, now+1))
		}
	}
	waitsToAsk := l.state == stateAsked || l.state == stateReleasing || l.state == stateNone && l.needed()
	switch {
	case l.op == 0 && l.state == stateClosed:
		at = min(at, max(l.endsAt, now+1))
	case l.op == 0 && waitsToAsk && down:
		at = min(at, t.wakeDown(l, now))
	case l.op == 0 && waitsToAsk, (l.starved || l.doubt) && l.renewGen == 0:
		at = min(at, max(l.retryAt, now+1))
	}
	if l.shortLived && now < l.optional.tryUntil {
		at = min(at, l.optional.tryUntil)
	}
	if since := t.failingSince(l); since != 0 && l.queue().nWaits > 0 {
		// When the grace time has passed, next ends the waits, as soon as no request is in flight.
		if end := since + int64(t.cfg.Grace); now < end || l.op == 0 {
			at = min(at, max(now+1, end))
		}
	}
	return at
}

// next sends l's next request to the store, if it is time for one.
func (t *Table) next(l *Lease, now int64, out *Effects) {
	down := l.st.downAt != 0
	if r := l.optional; r != nil && len(r.peeks) > 0 && l.state != stateHeld && !down {
		t.ask(l, OpPeek, now, out)
		return
	}
	if since := t.failingSince(l); since != 0 && now-since >= int64(t.cfg.Grace) {
		t.refuseWaiters(l, now, out)
	}
	if down {
		t.nextDown(l, now, out)
		return
	}
	switch l.state {
	case stateHeld:
		switch {
		case l.nHolds > 0 && l.downgrade:
			if now < l.retryAt {
				return
			}
			t.ask(l, OpDowngrade, now, out)
		case l.nHolds == 0 && !l.starved && !t.lingers(l, now, out):
			t.beginRelease(l, now, out)
			t.ask(l, OpRelease, now, out)
		}
	case stateReleasing, stateClosed:
		switch {
		case now >= l.endsAt:
			t.endReleasing(l, now, out)
			t.next(l, now, out)
		case l.state == stateReleasing && now >= l.retryAt:
			t.settle(l, now, out)
		case l.state == stateClosed && l.head == nil:
			t.refuseTries(l, CodeBusy, -1, now, out)
		}
	case stateAsked:
		switch {
		case l.pointless() || l.mode != l.neededMode() || l.shortLived && l.longWaits():
			t.beginRelease(l, now, out)
			t.settle(l, now, out)
		case now >= l.retryAt:
			t.ask(l, t.askKind(l), now, out)
		}
	case stateNone:
		if l.needed() && now >= l.retryAt {
			t.enter(l, stateAsked)
			l.token, l.mode = t.newToken(), l.neededMode()
			l.queued, l.maybe, l.granted = false, false, false
			if l.shortLived = t.startsShortLived(l); l.shortLived {
				l.withOptional().tryUntil = 0
			}
			t.ask(l, t.askKind(l), now, out)
		}
	}
}

// floor returns the base that a new base of l has to exceed.
func (t *Table) floor(l *Lease) uint64 {
	st := l.st
	if !st.Raises() {
		return 0 // the store's own order
	}
	return max(st.floor, st.past, l.epoch)
}

// settle asks the store to end a token with a pending release.
func (t *Table) settle(l *Lease, now int64, out *Effects) {
	if l.granted {
		t.ask(l, OpRelease, now, out)
	} else {
		t.ask(l, OpWithdraw, now, out)
	}
}

// neededMode returns the mode that the lease needs. It is the mode of the holds that this host has granted alone in
// an outage, or else the mode of the first waiter.
func (l *Lease) neededMode() Mode {
	if l.nHolds > 0 {
		return l.heldMode
	}
	return l.queue().waitHead.mode
}

func (t *Table) askKind(l *Lease) OpKind {
	kind := OpJoin
	if l.nHolds == 0 {
		l.ttl, kind = 0, OpTry
	}
	for w := l.queue().waitHead; w != nil; w = w.next {
		if w.mode == l.mode && (l.ttl == 0 || l.mode == Shared) {
			l.ttl = max(l.ttl, w.ttl)
		}
		if !w.try {
			kind = OpJoin
			if l.mode == Permit {
				break // the first one's TTL is as good as any
			}
		}
	}
	if l.shortLived {
		kind = OpJoin
	}
	return kind
}

// ask puts an op into the main lane.
func (t *Table) ask(l *Lease, k OpKind, now int64, out *Effects) {
	t.gen++
	l.op, l.opGen, l.early = k, t.gen, 0
	op := Op{Kind: k, Mode: l.mode, Key: l.key, Token: l.token, TTL: t.askTTL(l, now), Floor: t.floor(l),
		Store: l.st.ID, Ref: l, Gen: t.gen}
	if k == OpPeek {
		op.Token = 0
	}
	if k == OpTry || k == OpJoin {
		l.orphan = false // the token may stand under the present session, too
	}
	op.ShortLived = k == OpJoin && l.shortLived
	if w := l.queue().waitHead; w != nil && (k == OpTry || k == OpJoin) {
		op.For = w.req.Session
		op.For.addAsks(1)
	}
	if l.head != nil {
		op.Limit = l.head.sem.limit
	}
	out.Ops = append(out.Ops, op)
}

// beginRelease makes the release of a lease, or of an acquire that has been sent, pending.
func (t *Table) beginRelease(l *Lease, now int64, out *Effects) {
	switch {
	case l.st.Session && !(l.orphan && l.st.TTLs): // it lasts as long as the session
		l.endsAt = Forever
	case l.state == stateHeld:
		l.endsAt = max(now, l.until) + l.maxTTL
	default:
		l.endsAt = now + 2*l.maxTTL
	}
	if l.state == stateHeld {
		l.granted = true
	}
	t.enter(l, stateReleasing)
	l.retryAt = 0
	l.clearClaim()
	t.endExtends(l, CodeNotHeld, nil, out)
}

// close keeps l's key closed until the given time.
func (t *Table) close(l *Lease, until int64) {
	t.enter(l, stateClosed)
	l.endsAt = until
}

// endReleasing is called at the lease's endsAt. A closed lease of two stores is released now, unless only the key is
// closed: see Abandon. Any other lease is forgotten, because the store has dropped it by then.
func (t *Table) endReleasing(l *Lease, now int64, out *Effects) {
	if l.state == stateClosed && l.st.Pair && l.token != 0 {
		t.beginRelease(l, now, out)
		return
	}
	t.endClaim(l, out) // those waiting for its release must be told
	t.finishMove(l, out)
}

// forget ends the pending release: the store has nothing of this host's for l.
func (t *Table) forget(l *Lease) {
	t.enter(l, stateNone)
	t.dropLast(l)
	l.token, l.maxTTL, l.granted, l.queued, l.maybe, l.orphan = 0, 0, false, false, false, false
	l.clearClaim()
}

func (l *Lease) clearClaim() {
	l.contended, l.downgrade, l.rebase, l.starved, l.doubt, l.shortLived = false, false, false, false, false, false
	l.until, l.handoff, l.fence = 0, -1, 0
	l.renewGen = 0
}
