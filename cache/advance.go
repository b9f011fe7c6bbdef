package cache

import "github.com/locksidecar/locksidecar/protocol"

// This file decides the next step of a lease: the next request to the store, and its time.

// state is the state of a lease at the store.
type state uint8

const (
	// stateNone means that the store has no lease and no queue entry of this host for the key.
	stateNone state = iota
	// stateAsked means that an acquire has been sent with a token. The token may be in the store's
	// queue, or hold the lease already if the answer is lost.
	stateAsked
	// stateHeld means that the store has granted the lease.
	stateHeld
	// stateReleasing means that a release is pending: the store has not confirmed it yet.
	stateReleasing
	// stateClosed means that the lease is lost. The key stays closed until releasing.endsAt, when
	// the validity that was stated to its holders ends.
	stateClosed
)

// advance checks the whole state of l, or of its semaphore, and takes the next step. Every event
// that may change what l has to do ends with it: see doc.go. Afterwards the table may have dropped
// l, but l keeps its key and its state until the next event. The advance of a dropped lease does
// nothing.
func (t *Table) advance(l *Lease, now int64, out *Effects) {
	if l.dropped {
		return
	}
	switch k := l.kind.(type) {
	case *lock:
		t.advanceOne(l, now, out)
	case *semaphore:
		t.balance(k, now, out)
	case *permit:
		t.advanceOne(l, now, out)
		t.balance(k.of, now, out)
	}
}

// advanceEach advances the leases in ls. The advance of one may drop others.
func (t *Table) advanceEach(ls []*Lease, now int64, out *Effects) {
	for _, l := range ls {
		t.advance(l, now, out)
	}
}

// advanceOne advances one lease: first it ends what is over, then it grants what the lease allows,
// and then it takes the next step with the store.
func (t *Table) advanceOne(l *Lease, now int64, out *Effects) {
	t.expire(l, now, out)
	t.finishMove(l, out) // if a reload has routed the key to another store
	t.serveQueue(l, now, false, out)
	if l.hasPeeks() && l.nHolds > 0 && l.op != OpPeek { // the inspections came before the grant
		l.answerPeeks(t.inspectedHere(l, now), out)
	}
	wake := t.step(l, now, out)
	t.track(l, out) // tells the renewer
	if t.idle(l) {
		t.dropLease(l)
		return
	}
	t.arm(l, wake) // sets the timer
}

// pointless reports whether the answer to l's acquire is of no use here: no hold or waiter needs l
// any more, or its key has moved. A degraded hold is an exception: it still needs the lease at the
// earlier store.
func (l *Lease) pointless() bool { return !l.needed() || l.moved() && l.nHolds == 0 }

// idle reports whether the table can forget l.
func (t *Table) idle(l *Lease) bool {
	return l.state == stateNone && l.op == 0 && !l.needed() && !l.hasPeeks()
}

// nextStep says what a lease does next.
type nextStep struct {
	op OpKind // sent to the store now; 0 for none
	// wake is when the lease has to be advanced if no event advances it before. The answer to an op
	// in flight is such an event.
	wake int64
	// again means that the step has moved the lease to another state or store, whose step follows
	// at once.
	again bool
}

// step takes the next step of l: it sends at most one op to the main lane. It returns the time at
// which l has to be advanced again. Each state has one function that decides both, so that a lease
// that waits for something always has a wake-up for it.
func (t *Table) step(l *Lease, now int64, out *Effects) (wake int64) {
	for {
		grace := t.endGrace(l, now, out) // refuses waiters if the store has failed for too long
		if l.st.downAt != 0 {
			t.failPeeks(l, out)
		}
		var s nextStep
		switch l.state {
		case stateNone:
			s = t.stepNone(l, now, out)
		case stateAsked:
			s = t.stepAsked(l, now, out)
		case stateHeld:
			s = t.stepHeld(l, now, out)
		case stateReleasing:
			s = t.stepReleasing(l, now, out)
		case stateClosed:
			s = t.stepClosed(l, now, out)
		}
		if s.again {
			continue
		}
		if s.op != 0 {
			t.ask(l, s.op, now, out)
		}
		return max(now+1, min(l.minEnd, grace, l.degradedAt(now), s.wake))
	}
}

// stepNone begins to acquire a lease that is needed.
func (t *Table) stepNone(l *Lease, now int64, out *Effects) nextStep {
	switch {
	case l.op != 0:
		return nextStep{wake: Forever}
	case l.st.downAt != 0:
		t.refuseTriesWhileDown(l, now, out)
		return nextStep{wake: Forever}
	case l.hasPeeks():
		return nextStep{op: OpPeek, wake: Forever}
	case !l.needed():
		return nextStep{wake: Forever}
	case now < l.retryAt:
		return nextStep{wake: l.retryAt}
	}
	t.enter(l, stateAsked)
	l.token, l.mode = t.newToken(), l.neededMode()
	// Where leases linger, tries take a queue entry that lasts only for a moment: see linger.go.
	if l.asked.shortLived = t.startsShortLived(l); l.asked.shortLived {
		l.asked.tryUntil = 0
	}
	return nextStep{op: t.askKind(l), wake: Forever}
}

// stepAsked repeats the acquire, or withdraws it if its answer is of no use any more.
func (t *Table) stepAsked(l *Lease, now int64, out *Effects) nextStep {
	wake := t.endTryWaits(l, now, out)
	if l.op != 0 {
		return nextStep{wake: wake}
	}
	down := l.st.downAt != 0
	if down {
		t.refuseTriesWhileDown(l, now, out)
	} else if l.hasPeeks() {
		return nextStep{op: OpPeek, wake: wake}
	}
	switch {
	// A token keeps its mode, and its kind of queue entry. If the waiters need another one, the
	// request starts again under another token. While the store is down, that can wait.
	case l.pointless(),
		!down && (l.mode != l.neededMode() || l.asked.shortLived && l.longWaits()):
		t.beginRelease(l, now, out)
		return nextStep{again: true}
	case down:
		return nextStep{wake: wake}
	case now < l.retryAt:
		return nextStep{wake: min(wake, l.retryAt)}
	}
	return nextStep{op: t.askKind(l), wake: wake}
}

// stepHeld downgrades or releases the lease, or keeps it and lets it linger. It also renews the
// lease if that must not wait for the renewer. While the store is down, no lease lingers. If there
// are waiters but no hold, serveQueue has just found that the lease does not suit them, so it is
// released.
func (t *Table) stepHeld(l *Lease, now int64, out *Effects) nextStep {
	l.useKept() // only if all holds are detached
	s, down := nextStep{wake: l.held.until}, l.st.downAt != 0
	switch {
	case l.op != 0: // a downgrade; its answer decides
	// A starved lease has waiters, which are served once it is renewed. It is kept for them, unless
	// this host may now grant the key without the store.
	case l.nHolds == 0 && (!l.held.starved || t.grantsDegraded(l, now)):
		if down || !t.lingers(l, now, out) {
			t.beginRelease(l, now, out)
			return nextStep{again: true}
		}
		l.answerPeeks(Message{Kind: MsgInspected, Left: -1}, out) // no owner holds the key
		s.wake = min(s.wake, l.idleUntil())
	// Without a hold, the lease is released above, which makes the downgrade unnecessary.
	case l.nHolds > 0 && l.held.downgrade && !down:
		if now >= l.retryAt {
			s.op = OpDowngrade
		} else {
			s.wake = min(s.wake, l.retryAt)
		}
	}
	s.wake = min(s.wake, t.renewAtOnce(l, now, out))
	return s
}

// renewAtOnce renews l if the renewal must not wait for the renewer, which renews no leases that a
// store session keeps. If the store has just failed, wake is when to try again.
func (t *Table) renewAtOnce(l *Lease, now int64, out *Effects) (wake int64) {
	if l.held.rebase || l.held.doubt || l.held.unkept {
		t.renew(l, now, out)
	}
	if (l.held.starved || l.held.doubt || l.held.unkept) && l.held.renewGen == 0 {
		return l.retryAt
	}
	return Forever
}

// stepReleasing asks the store to end the token until the store has answered or has dropped the
// lease by itself. While a pair of stores is down, one of the two may still be reachable.
func (t *Table) stepReleasing(l *Lease, now int64, out *Effects) nextStep {
	if l.op != 0 {
		return nextStep{wake: Forever}
	}
	if now >= l.releasing.endsAt {
		t.endReleasing(l, now, out)
		return nextStep{again: true}
	}
	s, down := nextStep{wake: l.releasing.endsAt}, l.st.downAt != 0
	if down {
		t.failReleaser(l, protocol.Unknown, l.st.err, out)
		t.refuseTriesWhileDown(l, now, out)
		if !l.st.Pair {
			return s
		}
	}
	switch {
	case now >= l.retryAt && l.releasing.granted:
		return nextStep{op: OpRelease, wake: Forever}
	case now >= l.retryAt:
		return nextStep{op: OpWithdraw, wake: Forever}
	case !down && l.hasPeeks():
		return nextStep{op: OpPeek, wake: Forever}
	}
	s.wake = min(s.wake, l.retryAt)
	return s
}

// stepClosed waits until the key opens.
func (t *Table) stepClosed(l *Lease, now int64, out *Effects) nextStep {
	down := l.st.downAt != 0
	switch {
	case l.op != 0:
		return nextStep{wake: Forever}
	case now >= l.releasing.endsAt:
		t.endReleasing(l, now, out)
		return nextStep{again: true}
	case !down && l.hasPeeks():
		return nextStep{op: OpPeek, wake: Forever}
	case down && (!l.ns.Local || !l.isLock()):
		t.refuseTries(l, protocol.Unavailable, -1, now, out)
	case l.isLock():
		t.refuseTries(l, protocol.Busy, -1, now, out)
	}
	return nextStep{wake: l.releasing.endsAt}
}

// mayBeAtStore reports whether the store may have the token of l, which was sent with an acquire:
// it has confirmed the token's place in its queue, or has not answered.
func (l *Lease) mayBeAtStore() bool { return l.asked.queued || l.asked.unanswered }

// floor returns the base that a new base of l has to exceed.
func (t *Table) floor(l *Lease) uint64 {
	st := l.st
	if !st.Raises() {
		return 0 // the store orders its bases itself
	}
	return max(st.floor, st.past, l.epoch)
}

// neededMode returns the mode in which l has to be acquired. It is the mode of the holds that this
// host has granted alone in an outage, or else the mode of the first waiter.
func (l *Lease) neededMode() Mode {
	if l.nHolds > 0 {
		return l.heldMode
	}
	return l.queue().front().mode
}

// askKind returns the kind of the next acquire of l: OpTry if only tries wait for l. It sets l.ttl
// to the longest TTL of the readers that wait, or to the TTL of the first other waiter.
func (t *Table) askKind(l *Lease) OpKind {
	kind := OpJoin
	if l.nHolds == 0 {
		l.ttl, kind = 0, OpTry
	}
	for w := range l.queue().all() {
		if w.mode == l.mode && (l.ttl == 0 || l.mode == Shared) {
			l.ttl = max(l.ttl, w.ttl)
		}
		if !w.try {
			kind = OpJoin
			if l.mode == Permit {
				break // a permit serves one waiter, whichever comes first
			}
		}
	}
	if l.asked.shortLived {
		kind = OpJoin
	}
	return kind
}

// ask sends an op of kind k to the store: it puts the op into the main lane.
func (t *Table) ask(l *Lease, k OpKind, now int64, out *Effects) {
	t.gen++
	l.op, l.opGen, l.asked.early = k, t.gen, 0
	op := Op{Kind: k, Mode: l.mode, Key: l.key, Token: l.token, Floor: t.floor(l), Store: l.st.ID,
		Ref: l, Gen: t.gen}
	t.setTTL(&op, now)
	if k == OpPeek {
		op.Token = 0
	}
	if k == OpTry || k == OpJoin {
		l.orphan = false // the token may now depend on the present store session, not on a lost one
	}
	op.ShortLived = k == OpJoin && l.asked.shortLived
	if w := l.queue().front(); w != nil && (k == OpTry || k == OpJoin) {
		op.For = w.req.Session
		op.For.addAsks(1)
	}
	if p := l.permit(); p != nil {
		op.Limit = p.of.limit
	}
	out.Ops = append(out.Ops, op)
}

// beginRelease makes the release of a lease, or of an acquire that has been sent, pending. endsAt
// allows for a request without an answer that reaches the store late: a renewal just before the
// lease ends there, or an acquire up to maxTTL from now.
func (t *Table) beginRelease(l *Lease, now int64, out *Effects) {
	var endsAt int64
	switch {
	case l.st.Session && !(l.orphan && l.st.TTLs): // it lasts as long as the session
		endsAt = Forever
	case l.state == stateHeld:
		endsAt = max(now, l.held.until) + l.maxTTL
	default:
		endsAt = now + 2*l.maxTTL
	}
	granted := l.state == stateHeld || l.state == stateClosed
	t.enter(l, stateReleasing)
	l.releasing = releasingFields{endsAt: endsAt, granted: granted}
	l.retryAt = 0
	t.failClientRenewals(l, protocol.NotHeld, nil, out)
}

// close keeps l's key closed until the given time.
func (t *Table) close(l *Lease, until int64) {
	t.enter(l, stateClosed)
	l.releasing.endsAt = until
}

// endReleasing is called at the lease's endsAt. A closed lease at a pair is released now, unless
// only the key is closed and there is no lease: see Abandon. Any other lease is forgotten, because
// the store has dropped it by then.
func (t *Table) endReleasing(l *Lease, now int64, out *Effects) {
	if l.state == stateClosed && l.st.Pair && l.token != 0 {
		t.beginRelease(l, now, out)
		return
	}
	t.endClaim(l, out) // it also answers the client that waits for the release
	t.finishMove(l, out)
}

// forget records that the store has no lease and no queue entry of this host for l's key.
func (t *Table) forget(l *Lease) {
	t.enter(l, stateNone)
	t.forgetReleased(l)
	l.token, l.maxTTL, l.orphan = 0, 0, false
}
