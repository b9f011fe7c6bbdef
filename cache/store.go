package cache

import (
	"errors"
	"fmt"
)

// What the store says.

// ErrBase says that a store gave a fence base that cannot be used.
var ErrBase = errors.New("fence base out of range")

// Result is the store's answer to op, whose request was sent at sent.
func (t *Table) Result(op *Op, r *Result, sent, now int64, out *Effects) {
	l := op.Ref
	t.SessionUntil(r.Session, now, out)
	if r.Base > t.floor && r.Base <= MaxBase {
		t.floor = r.Base
	}
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
		if r.Base > MaxBase || r.Base == 0 {
			l.granted = true
			t.fail(l, now, fmt.Errorf("%w: %d", ErrBase, r.Base))
			t.refuseTries(l, CodeUnavailable, -1, out)
			t.owe(l, now, out)
			return
		}
		l.state, l.granted, l.queued, l.maybe, l.retryAt = stateHeld, true, false, false, 0
		l.base, l.hand, l.fence = r.Base, -1, 0
		l.until = Forever
		if !t.cfg.Session {
			l.until = LeaseDeadline(sent, int64(op.TTL))
		}
		t.held++
		if r.Wanted {
			t.setWanted(l, now)
		}
		if now < t.deadline(l) {
			t.handOver(l, now, true, out)
		}
	case Queued:
		t.succeed(l)
		l.queued = true
		l.retryAt = now + t.jitter(t.cfg.Poll)
		t.refuseTries(l, CodeBusy, r.Left, out)
	case Busy:
		t.succeed(l)
		t.forget(l)
		t.refuseTries(l, CodeBusy, r.Left, out)
	case Refused:
		t.fail(l, now, r.Err)
		if !l.queued && !l.maybe {
			t.forget(l)
		}
		t.refuseTries(l, CodeUnavailable, -1, out)
	default:
		t.fail(l, now, r.Err)
		l.maybe = true
		t.refuseTries(l, CodeUnavailable, -1, out)
	}
}

func (t *Table) released(l *Lease, op *Op, r *Result, now int64, out *Effects) {
	re := l.releaser
	l.releaser = Request{}
	code := CodeUnknown
	switch r.Status {
	case Done, NotHeld, Granted, Busy:
		t.succeed(l)
		t.forget(l)
		code = CodeOK
		if r.Status == NotHeld && op.Kind == OpRelease {
			code = CodeNotHeld
		}
	default:
		t.fail(l, now, r.Err)
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
	switch r.Status {
	case Done:
		l.downgrade, l.mode = false, Shared
		l.renewGen = 0 // a renewal of the exclusive lease means nothing any more
		t.extend(l, op, sent)
		t.retrack(l, false, out)
	case NotHeld:
		t.gone(l, out)
	default:
		// Exclusive or shared upstream: either excludes enough. Asked again,
		// which does no harm, until the store has answered.
		l.retryAt = now + int64(t.cfg.RetryMin)
	}
}

func (t *Table) gone(l *Lease, out *Effects) {
	if l.state == stateHeld {
		t.held--
	}
	t.loseAll(l, LostGone, out)
	t.endGrip(l, out)
}

// endGrip forgets a lease that the store does not know any more.
func (t *Table) endGrip(l *Lease, out *Effects) {
	t.endExtends(l, CodeNotHeld, nil, out)
	if l.releaser.Session != nil {
		out.fail(l.releaser, CodeNotHeld, nil)
		l.releaser = Request{}
	}
	t.forget(l)
}

// Hint is a store's word about a key; it may be wrong.
func (t *Table) Hint(h Hint, now int64, out *Effects) {
	l := t.leases[h.Key]
	if l == nil {
		return
	}
	switch {
	case h.Kind == HintWanted && l.state == stateHeld:
		t.setWanted(l, now)
	case h.Kind == HintFree && l.state == stateAsked && l.queued:
		l.retryAt = 0
	default:
		return
	}
	t.advance(l, now, out)
}

// SessionUntil is news of the session's deadline at the store; it never goes
// back. What was held under a deadline that has passed is gone all the same: the
// store may have dropped it before it went on.
func (t *Table) SessionUntil(until, now int64, out *Effects) {
	if !t.cfg.Session || until <= t.session {
		return
	}
	if t.held > 0 && now >= t.session {
		t.expireAll(now, out)
	}
	t.session = until
}

// SessionLost says that the store ended the session: every lease is gone.
func (t *Table) SessionLost(now int64, out *Effects) {
	for _, l := range t.sorted() {
		switch l.state {
		case stateHeld:
			t.held--
			t.loseAll(l, LostSession, out)
			t.endGrip(l, out)
		case stateOwed:
			t.endGrip(l, out)
		}
		t.advance(l, now, out)
	}
}
