package cache

import (
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file handles the answers and hints of stores, and news of store sessions.

// ErrBase means that a store has returned a fence base that cannot be used.
var ErrBase = errors.New("fence base out of range")

// Result handles the store's answer to op, which was sent at sent. If the lease no longer waits for
// this answer, Result only updates the record of the store.
func (t *Table) Result(op *Op, r *Result, sent, now int64, out *Effects) {
	l, st := op.Ref, t.stores[op.Store]
	if op.For != nil {
		op.For.addAsks(-1)
	}
	st.noteTrip(r, now-sent)
	t.confirmSession(st, r, now, out)
	t.noteBase(st, r.Base)
	if op.Kind == OpRenew {
		if l.held.renewGen == op.Gen {
			l.held.renewGen = 0
			t.renewalAnswered(l, op, r, sent, now, out)
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
		t.acquireAnswered(l, op, r, sent, now, out)
	case OpRelease, OpWithdraw:
		t.releaseAnswered(l, op, r, now, out)
	case OpDowngrade:
		t.downgradeAnswered(l, op, r, sent, now, out)
	case OpPeek:
		t.peekAnswered(l, r, out)
	}
	t.advance(l, now, out)
}

// acquireAnswered handles the answer to an acquire. Without a clear answer, the store may have the
// token: then the acquire is repeated under the same token, or the token is withdrawn.
func (t *Table) acquireAnswered(l *Lease, op *Op, r *Result, sent, now int64, out *Effects) {
	switch r.Status {
	case Granted:
		t.noteSuccess(l)
		t.leaseGranted(l, op, r, sent, now, out)
	case Queued:
		t.noteSuccess(l)
		t.leaseQueued(l, r, now, out)
	case Busy: // the store keeps nothing of the token
		t.noteSuccess(l)
		t.forget(l)
		l.queue().markHadToWait()
		t.refuseTries(l, protocol.Busy, r.Left, now, out)
	case Refused:
		t.noteFailure(l, now, r.Err)
		if r.Gone || !l.mayBeAtStore() {
			t.forget(l)
		}
		t.refuseTries(l, protocol.Unavailable, -1, now, out)
	default:
		t.noteFailure(l, now, r.Err)
		l.asked.unanswered = true
		t.refuseTries(l, protocol.Unavailable, -1, now, out)
	}
}

// leaseGranted handles the store's grant of l, and grants holds to the waiters. It releases a lease
// with a base that cannot be used.
func (t *Table) leaseGranted(l *Lease, op *Op, r *Result, sent, now int64, out *Effects) {
	if !l.st.Raises() && r.Base != 0 {
		r.Base += l.epoch
	}
	if r.Base > MaxBase || r.Base == 0 {
		t.noteFailure(l, now, fmt.Errorf("%w: %d", ErrBase, r.Base))
		t.refuseTries(l, protocol.Unavailable, -1, now, out)
		t.giveBack(l, now, out)
		return
	}
	until := Forever
	if l.st.renews() {
		until = LeaseDeadline(sent, int64(op.TTL))
	}
	late, weak := now >= min(until, l.st.sessionUntil), l.heldMode == Exclusive && l.mode == Shared
	// Holds that this host has granted alone in an outage now need this lease. It must still be
	// valid, and exclusive if they are.
	if l.nHolds > 0 && (late || weak) {
		t.giveBack(l, now, out)
		return
	}
	hints := l.asked.early
	t.enter(l, stateHeld)
	l.held = heldFields{base: r.Base, handoff: -1, since: now, until: until}
	// In an outage, this host may have granted the key to readers in the meantime.
	l.held.downgrade = l.nHolds > 0 && l.heldMode == Shared && l.mode == Exclusive
	l.retryAt = 0
	if l.nHolds == 0 {
		l.ttl = int64(op.TTL) // a hold that was granted in an outage may have changed it
	}
	t.noteOtherHosts(l, r, hints, now)
	if now < t.deadline(l) {
		t.serveQueue(l, now, true, out)
	}
}

// noteOtherHosts records the information about other hosts in the grant r of l, and in the hints
// that overtook it.
func (t *Table) noteOtherHosts(l *Lease, r *Result, hints early, now int64) {
	switch {
	case r.Contended || hints&earlyContended != 0:
		t.setContended(l, now)
	case hints&earlyTried != 0:
		t.countForeignUse(l, true, now)
	}
}

// giveBack releases a lease that the store has granted and that is of no use.
func (t *Table) giveBack(l *Lease, now int64, out *Effects) {
	t.beginRelease(l, now, out)
	l.releasing.granted = true
}

// leaseQueued records that l's token is in the store's queue.
func (t *Table) leaseQueued(l *Lease, r *Result, now int64, out *Effects) {
	if !l.asked.queued {
		t.countForeignUse(l, false, now)
		l.queue().markHadToWait()
	}
	l.asked.queued = true
	poll := t.cfg.Poll
	if !l.st.Queue {
		poll /= 5
	}
	l.retryAt = now + t.jitter(poll)
	if l.asked.early&earlyAvailable != 0 {
		l.retryAt = 0
	}
	if l.asked.shortLived && l.asked.tryUntil == 0 {
		l.asked.tryUntil = now + l.st.tryWait()
	}
	if !l.triesMayWait(now) {
		t.refuseTries(l, protocol.Busy, r.Left, now, out)
	}
}

// releaseAnswered handles the answer to a release or a withdrawal, and answers the client that
// waits for it. After any answer but a failure, the store has nothing of the token any more.
func (t *Table) releaseAnswered(l *Lease, op *Op, r *Result, now int64, out *Effects) {
	re := l.releaser
	l.releaser = Request{}
	code := protocol.Unknown
	switch r.Status {
	case Done, NotHeld, Granted, Busy:
		t.noteSuccess(l)
		code = protocol.OK
		if r.Status == NotHeld && op.Kind == OpRelease {
			code = protocol.NotHeld
			t.foundGone(l, now, out)
		}
		t.forget(l)
		if l.isLock() && !l.queue().empty() {
			l.retryAt = now + int64(l.ns.Pause)
		}
	default:
		t.noteFailure(l, now, r.Err)
		// The store may have carried out the release. Then it answers the repeated one with NotHeld,
		// which does not show a loss.
		t.forgetReleased(l)
		if r.Expires && l.state == stateReleasing {
			t.orphanReleasing(l, now)
		}
		// The other store is asked once it is up again: see StoreUp.
		if r.Partly && l.st.downAt != 0 {
			l.retryAt = now + t.jitter(partlyPause*t.cfg.RetryMax)
		}
	}
	switch {
	case re.Session == nil:
	case code == protocol.OK:
		out.released(re, 0)
	default:
		out.fail(re, code, r.Err)
	}
}

// downgradeAnswered handles the answer to a downgrade, if it is still about the lease that is held.
func (t *Table) downgradeAnswered(l *Lease, op *Op, r *Result, sent, now int64, out *Effects) {
	if l.state != stateHeld || l.token != op.Token {
		return
	}
	if t.expire(l, now, out); l.state != stateHeld {
		return // the answer came too late
	}
	switch r.Status {
	case Done:
		l.held.downgrade, l.mode = false, Shared
		l.held.renewGen = 0 // ignore the answer to a renewal of the exclusive lease
		t.extendDeadline(l, op, sent)
		t.retrack(l, false, out)
		t.renewForClients(l, now, out) // the clients may have waited for that answer
	case NotHeld:
		t.loseLease(l, protocol.LostGone, now, out)
	default:
		// The lease may be exclusive or shared at the store; both exclude enough. The downgrade is
		// repeated, which does no harm, until the store has answered.
		l.retryAt = now + int64(t.cfg.RetryMin)
	}
}

// loseLease ends a lease that the store no longer has, and the holds on it. One store of a pair may
// still have the lease. The lease is released there, but only after the validity stated to its
// holders has ended: until then it keeps other hosts out.
func (t *Table) loseLease(l *Lease, why protocol.Reason, now int64, out *Effects) {
	until := t.statedUntil(l, now)
	for h := range l.holds.all() {
		t.lose(h, why, now, out)
	}
	if why == protocol.LostGone {
		t.foundGone(l, now, out)
	}
	if !l.st.Pair {
		t.endClaim(l, out)
		return
	}
	l.orphan = why == protocol.LostSession
	t.forgetReleased(l) // NotHeld at the other store would not show a loss
	t.beginRelease(l, now, out)
	if until > now {
		t.close(l, until)
	}
}

// statedUntil returns the end of the validity that was stated to the holders of l, or now without
// any.
func (t *Table) statedUntil(l *Lease, now int64) int64 {
	until := now
	for h := range l.holds.all() {
		until = max(until, t.validUntil(h))
	}
	return until
}

// endClaim forgets the lease l, which the store no longer has.
func (t *Table) endClaim(l *Lease, out *Effects) {
	t.failClientRenewals(l, protocol.NotHeld, nil, out)
	t.failReleaser(l, protocol.NotHeld, nil, out)
	t.forget(l)
}

// Hint handles a store's hint about a key. The hint may be wrong.
func (t *Table) Hint(s *StoreTraits, h Hint, now int64, out *Effects) {
	if h.Mode == Permit {
		t.hintPermits(s, h, now, out)
		return
	}
	l := t.locks[h.Key].lease()
	if l == nil || l.st.StoreTraits != s {
		return
	}
	t.hint(l, h, now, out)
}

// hint handles a hint about l. If an acquire is in flight, its answer decides what the hint means,
// so hint records it for then.
func (t *Table) hint(l *Lease, h Hint, now int64, out *Effects) {
	switch {
	case h.Kind == HintContended && l.state == stateHeld:
		t.setContended(l, now)
	case h.Kind == HintTried && l.state == stateHeld:
		t.countForeignUse(l, true, now)
		if l.idleUntil() != 0 {
			l.optional.idleUntil = now
		}
	case h.Kind == HintGone && l.state == stateHeld:
		l.held.doubt = true
	case h.Kind == HintAvailable && l.state == stateAsked && l.asked.queued && l.op == 0:
		l.retryAt = 0
	case l.state == stateAsked && l.op != 0:
		l.asked.early |= earlyHint[h.Kind]
		return
	default:
		return
	}
	t.advance(l, now, out)
}

var earlyHint = [...]early{HintAvailable: earlyAvailable, HintContended: earlyContended,
	HintTried: earlyTried, HintGone: 0}

// Knows reports whether the table may still send requests with a token.
func (t *Table) Knows(s *StoreTraits, key string, token uint64) bool {
	for l := range t.named(key) {
		if l.st.StoreTraits == s && l.state != stateNone && l.token == token {
			return true
		}
	}
	return false
}

// KnowsKey reports whether a store has, or may have, a lease or a queue entry of this host for a
// key.
func (t *Table) KnowsKey(s *StoreTraits, key string) bool {
	for l := range t.named(key) {
		if l.st.StoreTraits == s && l.state != stateNone {
			return true
		}
	}
	return false
}

// SessionUntil tells the table the deadline of session no at a store. A deadline never moves back.
// Leases whose deadline had passed before are lost nevertheless: the store may have dropped them
// before it extended the session.
func (t *Table) SessionUntil(s *StoreTraits, no uint64, until, now int64, out *Effects) {
	st := t.store(s)
	if !st.Session || no < st.sessionNo {
		return
	}
	if (no > st.sessionNo || until > st.sessionUntil) && st.held > 0 &&
		st.sessionUntil != 0 && now >= st.sessionUntil {
		t.expireAll(st, now, out)
	}
	if no > st.sessionNo {
		t.sessionLost(st, now, out)
		st.sessionNo, st.sessionUntil = no, 0
	}
	if until <= st.sessionUntil {
		return
	}
	st.sessionUntil = until
}

// SessionLost tells the table that session no at a store, and all earlier sessions, have ended.
// Every lease under them is lost.
func (t *Table) SessionLost(s *StoreTraits, no uint64, now int64, out *Effects) {
	if st := t.store(s); no >= st.sessionNo {
		t.sessionLost(st, now, out)
		st.sessionNo, st.sessionUntil = no+1, 0
	}
}

// sessionLost ends the leases that depend on the present session of a store.
func (t *Table) sessionLost(st *storeRecord, now int64, out *Effects) {
	for _, l := range t.sorted() {
		if l.st != st {
			continue
		}
		switch {
		case l.state == stateHeld:
			t.loseLease(l, protocol.LostSession, now, out)
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

// orphanReleasing records that a lease with a pending release ends with its TTL, if the store has
// TTLs. One store of a pair may still have the lease, and nothing renews it there.
func (t *Table) orphanReleasing(l *Lease, now int64) {
	l.orphan = true
	if l.st.TTLs {
		l.releasing.endsAt = min(l.releasing.endsAt, now+2*l.maxTTL)
	}
}

// partlyPause is the pause, in units of RetryMax, before a release that one store of a pair has
// carried out is sent again while the pair is down. StoreUp sends it at once.
const partlyPause = 60

var errOldSession = errors.New("the store session of this request has ended")

// confirmSession turns a success of an ended store session into Unknown.
func (t *Table) confirmSession(st *storeRecord, r *Result, now int64, out *Effects) {
	if r.Session == 0 {
		return
	}
	t.SessionUntil(st.StoreTraits, r.SessionNo, r.Session, now, out)
	if r.SessionNo < st.sessionNo && (r.Status == Granted || r.Status == Queued || r.Status == Done) {
		*r = Result{Status: Unknown, Left: -1, Err: errOldSession}
	}
}
