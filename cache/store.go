package cache

import (
	"errors"
	"fmt"
)

// Answers, hints and session news from stores.

// ErrBase means that a store has returned a fence base that cannot be used.
var ErrBase = errors.New("fence base out of range")

// Result takes in the store's answer to op. The request was sent at sent.
func (t *Table) Result(op *Op, r *Result, sent, now int64, out *Effects) {
	l, st := op.Ref, t.stores[op.Store]
	if op.For != nil {
		op.For.addAsks(-1)
	}
	st.took(r, now-sent)
	t.confirmSession(st, r, now, out)
	t.gave(st, r.Base)
	if op.Kind == OpRenew {
		if l.renewGen == op.Gen {
			l.renewGen = 0
			t.renewed(l, op, r, sent, now, out)
			t.advance(l, now, out)
		}
		return
	}
	if l.opGen != op.Gen {
		return
	}
	l.op, l.opGen = 0, 0
	switch op.Kind {
	case OpTry, OpJoin:
		t.asked(l, op, r, sent, now, out)
	case OpRelease, OpWithdraw:
		t.released(l, op, r, now, out)
	case OpDowngrade:
		t.downgraded(l, op, r, sent, now, out)
	case OpPeek:
		t.peeked(l, r, out)
	}
	t.advance(l, now, out)
}

func (t *Table) asked(l *Lease, op *Op, r *Result, sent, now int64, out *Effects) {
	switch r.Status {
	case Granted:
		t.succeed(l)
		st := l.st
		if !st.Raises() && r.Base != 0 {
			r.Base += l.epoch
		}
		if r.Base > MaxBase || r.Base == 0 {
			l.granted = true
			t.fail(l, now, fmt.Errorf("%w: %d", ErrBase, r.Base))
			t.refuseTries(l, CodeUnavailable, -1, now, out)
			t.beginRelease(l, now, out)
			return
		}
		t.enter(l, stateHeld)
		l.granted, l.queued, l.maybe, l.shortLived, l.retryAt = true, false, false, false, 0
		l.base, l.handoff, l.fence, l.since = r.Base, -1, 0, now
		l.downgrade = l.nHolds > 0 && l.heldMode == Shared && l.mode == Exclusive // meanwhile, in an outage
		l.until = Forever
		if st.renews() {
			l.until = LeaseDeadline(sent, int64(op.TTL))
		}
		if r.Contended {
			t.setContended(l, now)
		}
		if l.early&earlyContended != 0 {
			t.setContended(l, now)
		} else if l.early&earlyTried != 0 {
			t.contested(l, true, now)
		}
		if now < t.deadline(l) {
			t.handoff(l, now, true, out)
		}
	case Queued:
		t.succeed(l)
		if !l.queued {
			t.contested(l, false, now)
			l.queue().markContended()
		}
		l.queued = true
		poll := t.cfg.Poll
		if !l.st.Queue {
			poll /= 5
		}
		l.retryAt = now + t.jitter(poll)
		if l.early&earlyAvailable != 0 {
			l.retryAt = 0
		}
		if l.shortLived && l.optional.tryUntil == 0 {
			l.optional.tryUntil = now + l.st.tryWait()
		}
		if !l.inMoment(now) {
			t.refuseTries(l, CodeBusy, r.Left, now, out)
		}
	case Busy:
		t.succeed(l)
		t.forget(l)
		l.queue().markContended()
		t.refuseTries(l, CodeBusy, r.Left, now, out)
	case Refused:
		t.fail(l, now, r.Err)
		if r.Gone || !l.queued && !l.maybe {
			t.forget(l)
		}
		t.refuseTries(l, CodeUnavailable, -1, now, out)
	default:
		t.fail(l, now, r.Err)
		l.maybe = true
		t.refuseTries(l, CodeUnavailable, -1, now, out)
	}
}

func (t *Table) released(l *Lease, op *Op, r *Result, now int64, out *Effects) {
	re := l.releaser
	l.releaser = Request{}
	code := CodeUnknown
	switch r.Status {
	case Done, NotHeld, Granted, Busy:
		t.succeed(l)
		code = CodeOK
		if r.Status == NotHeld && op.Kind == OpRelease {
			code = CodeNotHeld
			t.foundGone(l, now, out)
		}
		t.forget(l)
		if l.nWaits > 0 {
			l.retryAt = now + int64(l.ns.Pause)
		}
	default:
		t.fail(l, now, r.Err)
		t.dropLast(l) // the store may have carried the release out, and then does not know the lease the next time
		if r.Expires && l.state == stateReleasing {
			t.orphanReleasing(l, now)
		}
		if r.Partly && l.st.downAt != 0 { // the other store is asked once it is up again: see StoreUp
			l.retryAt = now + t.jitter(partlyPause*t.cfg.RetryMax)
		}
	}
	switch {
	case re.Session == nil:
	case code == CodeOK:
		out.released(re, 0)
	default:
		out.fail(re, code, r.Err)
	}
}

func (t *Table) downgraded(l *Lease, op *Op, r *Result, sent, now int64, out *Effects) {
	if l.state != stateHeld || l.token != op.Token {
		return
	}
	if t.expire(l, now, out); l.state != stateHeld {
		return // as in renewed
	}
	switch r.Status {
	case Done:
		l.downgrade, l.mode = false, Shared
		l.renewGen = 0 // a renewal of the exclusive lease means nothing any more
		t.extend(l, op, sent)
		t.retrack(l, false, out)
		t.renewForClients(l, now, out) // the answer that they wait for means nothing any more
	case NotHeld:
		t.gone(l, LostGone, now, out)
	default:
		// Exclusive or shared upstream: either excludes enough. Asked again,
		// which does no harm, until the store has answered.
		l.retryAt = now + int64(t.cfg.RetryMin)
	}
}

// gone ends a lease that the store no longer has, and the holds on it. One store of a pair may still have the
// lease. The lease is released there, but only after the validity stated to its holders has ended: until then it
// keeps other hosts out.
func (t *Table) gone(l *Lease, why Reason, now int64, out *Effects) {
	until := t.statedUntil(l, now)
	for l.holds != nil {
		t.lose(l.holds, why, now, out)
	}
	if why == LostGone {
		t.foundGone(l, now, out)
	}
	if !l.st.Pair {
		t.endClaim(l, out)
		return
	}
	l.orphan = why == LostSession
	t.dropLast(l) // NotHeld for the rest would not show that this hold was lost
	t.beginRelease(l, now, out)
	if until > now {
		t.close(l, until)
	}
}

// statedUntil returns the end of the validity that was stated to the holders of l, or now without any.
func (t *Table) statedUntil(l *Lease, now int64) int64 {
	until := now
	for h := l.holds; h != nil; h = h.next {
		until = max(until, t.valid(h))
	}
	return until
}

// endClaim forgets the lease l, which the store no longer has.
func (t *Table) endClaim(l *Lease, out *Effects) {
	t.endExtends(l, CodeNotHeld, nil, out)
	if l.releaser.Session != nil {
		out.fail(l.releaser, CodeNotHeld, nil)
		l.releaser = Request{}
	}
	t.forget(l)
}

// Hint takes in a store's hint about a key. The hint may be wrong.
func (t *Table) Hint(s *Store, h Hint, now int64, out *Effects) {
	if h.Mode == Permit {
		t.hintPermits(s, h, now, out)
		return
	}
	l := t.leases[h.Key]
	if l == nil || l.st.Store != s {
		return
	}
	t.hint(l, h, now, out)
}

func (t *Table) hint(l *Lease, h Hint, now int64, out *Effects) {
	switch {
	case h.Kind == HintContended && l.state == stateHeld:
		t.setContended(l, now)
	case h.Kind == HintTried && l.state == stateHeld:
		t.contested(l, true, now)
		if l.idleUntil() != 0 {
			l.optional.idleUntil = now
		}
	case h.Kind == HintGone && l.state == stateHeld:
		l.doubt = true
	case h.Kind == HintAvailable && l.state == stateAsked && l.queued && l.op == 0:
		l.retryAt = 0
	case l.state == stateAsked && l.op != 0:
		l.early |= earlyHint[h.Kind]
		return
	default:
		return
	}
	t.advance(l, now, out)
}

var earlyHint = [...]early{HintAvailable: earlyAvailable, HintContended: earlyContended, HintTried: earlyTried, HintGone: 0}

// Knows reports whether the table may still send requests with a token.
func (t *Table) Knows(s *Store, key string, token uint64) bool {
	for l := range t.named(key) {
		if l.st.Store == s && l.state != stateNone && l.token == token {
			return true
		}
	}
	return false
}

// KnowsKey reports whether a store has, or may have, a lease or a queue entry of this host for a key.
func (t *Table) KnowsKey(s *Store, key string) bool {
	for l := range t.named(key) {
		if l.st.Store == s && l.state != stateNone {
			return true
		}
	}
	return false
}

// SessionUntil takes in the deadline of session no at a store. A deadline never moves back. Leases whose deadline
// had passed before are lost all the same: the store may have dropped them before it extended the session.
func (t *Table) SessionUntil(s *Store, no uint64, until, now int64, out *Effects) {
	st := t.store(s)
	if !st.Session || no < st.no {
		return
	}
	if (no > st.no || until > st.session) && st.held > 0 && st.session != 0 && now >= st.session {
		t.expireAll(st, now, out)
	}
	if no > st.no {
		t.sessionLost(st, now, out)
		st.no, st.session = no, 0
	}
	if until <= st.session {
		return
	}
	st.session = until
}

// SessionLost tells the table that session no at a store, and all earlier sessions, have ended. Every lease
// under them is lost.
func (t *Table) SessionLost(s *Store, no uint64, now int64, out *Effects) {
	if st := t.store(s); no >= st.no {
		t.sessionLost(st, now, out)
		st.no, st.session = no+1, 0
	}
}

func (t *Table) sessionLost(st *storeState, now int64, out *Effects) {
	for _, l := range t.sorted() {
		if l.st != st {
			continue
		}
		switch {
		case l.state == stateHeld:
			t.gone(l, LostSession, now, out)
		case l.state == stateReleasing && !st.Pair:
			t.endClaim(l, out)
		case l.state == stateReleasing:
			t.orphanReleasing(l, now)
		case l.state == stateClosed, l.state == stateAsked && l.op == 0:
			l.orphan = st.Pair
		}
		t.advance(l, now, out)
	}
}

// orphanReleasing records that a lease with a pending release ends with its TTL, if it has one: only one store of
// a pair may still have it, and nothing renews it.
func (t *Table) orphanReleasing(l *Lease, now int64) {
	l.orphan = true
	if l.st.TTLs {
		l.endsAt = min(l.endsAt, now+2*l.maxTTL)
	}
}

// partlyPause is the pause, in units of RetryMax, before a release that one store of a pair has carried out is sent
// again while the pair is down. StoreUp sends it at once.
const partlyPause = 60

var errOldSession = errors.New("the store's session of then has ended")

// confirmSession turns a success of an ended store session into Unknown.
func (t *Table) confirmSession(st *storeState, r *Result, now int64, out *Effects) {
	if r.Session == 0 {
		return
	}
	t.SessionUntil(st.Store, r.SessionNo, r.Session, now, out)
	if r.SessionNo < st.no && (r.Status == Granted || r.Status == Queued || r.Status == Done) {
		*r = Result{Status: Unknown, Left: -1, Err: errOldSession}
	}
}
