package cache

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// What happens between this host and the store.

// ErrBase says that a store gave a fence base that cannot be used.
var ErrBase = errors.New("fence base out of range")

// advance looks at everything that is known of l and does the next thing. Every
// event that touched l ends here; l may be gone afterwards.
func (t *Table) advance(l *Lease, now int64, out *Effects) {
	t.expire(l, now, out)
	if l.state == stateHeld {
		t.handOver(l, now, false, out)
		t.answerPeeks(l, now, out)
	}
	if l.op == 0 {
		t.next(l, now, out)
	}
	if l.state == stateHeld && l.rebase {
		t.renew(l, now, out)
	}
	t.track(l, out)
	if t.idle(l) {
		t.dropLease(l)
		return
	}
	t.arm(l, t.wakeAt(l, now))
}

// idle says that nothing is left to know of l.
func (t *Table) idle(l *Lease) bool {
	return l.state == stateNone && l.op == 0 && l.nWaits == 0 && l.renewGen == 0 &&
		(l.rare == nil || len(l.rare.peeks) == 0)
}

// wakeAt is when l has to be looked at again if nothing else happens.
func (t *Table) wakeAt(l *Lease, now int64) int64 {
	at := Forever
	if l.state == stateHeld {
		at = min(l.until, l.minEnd)
		if l.downgrade && l.op == 0 {
			at = min(at, max(l.retryAt, now+1))
		}
	}
	waitsToAsk := l.state == stateAsked || l.state == stateOwed || l.state == stateNone && l.nWaits > 0
	if l.op == 0 && waitsToAsk || l.starved && l.renewGen == 0 {
		at = min(at, max(l.retryAt, now+1))
	}
	if r := l.rare; r != nil && r.failSince != 0 && l.nWaits > 0 {
		at = min(at, max(now+1, r.failSince+int64(t.cfg.Grace)))
	}
	return at
}

// next asks the store for the next thing, if it is time for one.
func (t *Table) next(l *Lease, now int64, out *Effects) {
	if r := l.rare; r != nil && len(r.peeks) > 0 && l.state != stateHeld {
		t.ask(l, OpPeek, now, out)
		return
	}
	if r := l.rare; r != nil && r.failSince != 0 && now-r.failSince >= int64(t.cfg.Grace) {
		t.refuseWaiters(l, out)
	}
	switch l.state {
	case stateHeld:
		switch {
		case l.nHolds > 0 && l.downgrade:
			if now < l.retryAt {
				return
			}
			t.ask(l, OpDowngrade, now, out)
		case l.nHolds == 0 && !l.starved:
			t.owe(l, now, out)
			t.ask(l, OpRelease, now, out)
		}
	case stateOwed:
		if now >= l.oweUntil {
			t.forget(l)
			t.next(l, now, out)
		} else if now >= l.retryAt {
			t.settle(l, now, out)
		}
	case stateAsked:
		switch {
		case l.nWaits == 0 || l.mode != l.wantedMode():
			t.owe(l, now, out)
			t.settle(l, now, out)
		case now >= l.retryAt:
			t.ask(l, t.askKind(l), now, out)
		}
	case stateNone:
		if l.nWaits > 0 && now >= l.retryAt {
			l.token, l.state, l.mode = t.newToken(), stateAsked, l.wantedMode()
			l.queued, l.maybe, l.granted, l.ttl = false, false, false, 0
			t.ask(l, t.askKind(l), now, out)
		}
	}
}

// settle asks for the end of a token that is owed.
func (t *Table) settle(l *Lease, now int64, out *Effects) {
	if l.granted {
		t.ask(l, OpRelease, now, out)
	} else {
		t.ask(l, OpWithdraw, now, out)
	}
}

// wantedMode is the mode in which the waiters want the lease: the first one's.
func (l *Lease) wantedMode() Mode { return l.waitHead.mode }

func (t *Table) askKind(l *Lease) OpKind {
	l.ttl = 0
	kind := OpTry
	for w := l.waitHead; w != nil; w = w.next {
		if w.mode == l.mode && (l.ttl == 0 || l.mode == Shared) {
			l.ttl = max(l.ttl, w.ttl)
		}
		if !w.try {
			kind = OpJoin
		}
	}
	return kind
}

// ask puts an op into the main lane.
func (t *Table) ask(l *Lease, k OpKind, now int64, out *Effects) {
	t.gen++
	l.op, l.opGen = k, t.gen
	op := Op{Kind: k, Mode: l.mode, Key: l.key, Token: l.token, TTL: t.renewTTL(l, now), Floor: t.floor, Ref: l, Gen: t.gen}
	if k == OpPeek {
		op.Token = 0
	}
	out.Ops = append(out.Ops, op)
}

// renew puts a renewal into its lane unless one is under way or has just failed.
func (t *Table) renew(l *Lease, now int64, out *Effects) {
	if l.renewGen != 0 || l.state != stateHeld || now < l.retryAt {
		return
	}
	if t.cfg.Session && !l.rebase {
		return // the session keeps it
	}
	t.gen++
	l.renewGen = t.gen
	out.Ops = append(out.Ops, Op{Kind: OpRenew, Mode: l.mode, Rebase: l.rebase, Key: l.key, Token: l.token,
		TTL: t.renewTTL(l, now), Floor: t.floor, Ref: l, Gen: t.gen})
}

// owe turns a lease or an ask into a debt: the token has to go.
func (t *Table) owe(l *Lease, now int64, out *Effects) {
	if l.state == stateHeld {
		l.granted = true
		l.oweUntil = Forever
		if !t.cfg.Session {
			l.oweUntil = max(now, l.until) + l.ttl
		}
		t.held--
	} else {
		l.oweUntil = now + 2*l.ttl
	}
	l.state, l.retryAt = stateOwed, 0
	l.clearGrip()
	t.endExtends(l, CodeNotHeld, nil, out)
}

// forget ends the debt: nothing of ours is upstream.
func (t *Table) forget(l *Lease) {
	l.state, l.token, l.granted, l.queued, l.maybe = stateNone, 0, false, false, false
	l.clearGrip()
}

func (l *Lease) clearGrip() {
	l.wanted, l.downgrade, l.rebase, l.starved = false, false, false, false
	l.until, l.hand, l.fence = 0, -1, 0
	l.renewGen = 0
}

// track tells the renewer what has changed for it: leases that somebody holds,
// or is about to, are renewed before they end.
func (t *Table) track(l *Lease, out *Effects) {
	if t.cfg.Session {
		return
	}
	if l.state != stateHeld || !t.needsRenewal(l) {
		if l.tracked {
			l.tracked = false
			out.Tracks = append(out.Tracks, Track{Lease: l})
		}
		return
	}
	if !l.tracked {
		l.tracked = true
		out.Tracks = append(out.Tracks, Track{Lease: l, Gen: l.token, Until: l.until, TTL: l.ttl})
	}
}

// needsRenewal says that somebody keeps l beyond its present deadline.
func (t *Table) needsRenewal(l *Lease) bool {
	if l.nHolds == 1 { // the common case
		return l.holds.end == 0 || l.holds.end > l.until
	}
	for h := l.holds; h != nil; h = h.next {
		if h.end == 0 || h.end > l.until {
			return true
		}
	}
	return false
}

// RenewDue is the renewer's word that the time to renew l has come.
func (t *Table) RenewDue(l *Lease, gen uint64, now int64, out *Effects) {
	if l.state != stateHeld || l.token != gen || !l.tracked {
		return
	}
	t.expire(l, now, out)
	t.renew(l, now, out)
	if l.state == stateHeld && l.renewGen == 0 && l.tracked {
		out.Tracks = append(out.Tracks, Track{Lease: l, Gen: l.token, Until: l.until, TTL: l.ttl, Failed: true})
		return
	}
	t.advance(l, now, out)
}

// Result is the store's answer to op, whose request was sent at sent.
func (t *Table) Result(op *Op, r *Result, sent, now int64, out *Effects) {
	l := op.Ref
	if r.Session > t.session && t.cfg.Session {
		t.session = r.Session
	}
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

// extend moves the deadline; it never goes back, so that what was stated stays
// true.
func (t *Table) extend(l *Lease, op *Op, sent int64) {
	if !t.cfg.Session {
		l.until = max(l.until, LeaseDeadline(sent, int64(op.TTL)))
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

func (t *Table) renewed(l *Lease, op *Op, r *Result, sent, now int64, out *Effects) {
	if l.state != stateHeld || l.token != op.Token {
		return
	}
	switch r.Status {
	case Done, Granted:
		t.extend(l, op, sent)
		l.retryAt = 0
		if op.Rebase && r.Base > l.base && r.Base <= MaxBase {
			l.base, l.hand, l.rebase = r.Base, -1, false
			// A phase of readers under way keeps its fence; later ones get a larger.
		}
		if r.Wanted {
			t.setWanted(l, now)
		}
		t.retrack(l, false, out)
		t.finishExtends(l, op, now, out)
	case NotHeld:
		if l.downgrade {
			t.retrack(l, true, out) // it may be shared by now: the downgrade's answer decides
			return
		}
		t.gone(l, out)
	default:
		l.retryAt = now + int64(t.cfg.RetryMin)
		t.retrack(l, true, out)
		t.endExtends(l, CodeUnavailable, r.Err, out)
	}
}

func (t *Table) retrack(l *Lease, failed bool, out *Effects) {
	if l.tracked && l.state == stateHeld {
		out.Tracks = append(out.Tracks, Track{Lease: l, Gen: l.token, Until: l.until, TTL: l.ttl, Failed: failed})
	}
}

// finishExtends answers clients' renewals that this one has carried out.
func (t *Table) finishExtends(l *Lease, op *Op, now int64, out *Effects) {
	r := l.rare
	if r == nil || len(r.extends) == 0 {
		return
	}
	rest := r.extends[:0]
	ttl := int64(0)
	for _, x := range r.extends {
		h := l.find(x.req.Session, x.owner)
		switch {
		case h == nil || h.fence != x.fence:
			out.fail(x.req, CodeNotHeld, nil)
		case x.ttl > int64(op.TTL): // asked for after this one had been sent
			rest = append(rest, x)
		default:
			ttl = max(ttl, x.ttl)
			t.extendHold(h, x.ttl, min(now+x.ttl, l.until))
			t.sayGranted(h, x.req, false, out)
		}
	}
	clear(r.extends[len(rest):])
	r.extends = rest
	if len(rest) > 0 {
		t.renew(l, now, out)
	}
}

func (t *Table) endExtends(l *Lease, c Code, err error, out *Effects) {
	if l.rare == nil {
		return
	}
	for _, x := range l.rare.extends {
		out.fail(x.req, c, err)
	}
	l.rare.extends = nil
}

func (t *Table) peeked(l *Lease, r *Result, out *Effects) {
	m := Message{Kind: MsgInspected, Left: -1, Waiters: l.nWaits}
	switch r.Status {
	case Busy, Granted:
		m.Held, m.Left, m.Mode = 2, r.Left, r.Mode
		t.succeed(l)
	case Done:
		t.succeed(l)
	default:
		m = Message{Kind: MsgFailed, Code: CodeUnavailable, Left: -1, Err: r.Err}
	}
	for _, re := range l.rare.peeks {
		m.Re = re
		out.Messages = append(out.Messages, m)
	}
	l.rare.peeks = nil
}

// fail notes that the store did not do what was asked; the next try comes later
// each time.
func (t *Table) fail(l *Lease, now int64, err error) {
	r := l.rarely()
	if r.failSince == 0 {
		r.failSince = max(now, 1)
	}
	pause := t.cfg.RetryMin << min(r.fails, 16)
	r.fails++
	r.err = err
	l.retryAt = now + t.jitter(min(max(pause, t.cfg.RetryMin), t.cfg.RetryMax))
}

func (t *Table) succeed(l *Lease) {
	if r := l.rare; r != nil {
		r.failSince, r.fails, r.err = 0, 0, nil
	}
	l.retryAt = 0
}

func (t *Table) refuseTries(l *Lease, c Code, left int64, out *Effects) {
	var err error
	if l.rare != nil {
		err = l.rare.err
	}
	for w := l.waitHead; w != nil; {
		next := w.next
		if w.try {
			if c == CodeBusy {
				out.busy(w.req, left)
			} else {
				out.fail(w.req, c, err)
			}
			t.dropWaiter(w)
		}
		w = next
	}
}

// refuseWaiters ends waits that have outlasted the grace for a failing store.
func (t *Table) refuseWaiters(l *Lease, out *Effects) {
	for l.waitHead != nil {
		out.fail(l.waitHead.req, CodeUnavailable, l.rare.err)
		t.dropWaiter(l.waitHead)
	}
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
// back.
func (t *Table) SessionUntil(until int64) {
	if t.cfg.Session {
		t.session = max(t.session, until)
	}
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

// Inspect answers what is known of a key, asking the store if this host does not
// hold it.
func (t *Table) Inspect(re Request, key []byte, now int64, out *Effects) {
	l := t.leases[string(key)]
	if l != nil {
		t.expire(l, now, out)
		if l.nHolds > 0 {
			t.sayHeld(l, re, now, out)
			t.advance(l, now, out)
			return
		}
	} else {
		l = t.lease(key)
	}
	r := l.rarely()
	r.peeks = append(r.peeks, re)
	t.advance(l, now, out)
}

func (t *Table) sayHeld(l *Lease, re Request, now int64, out *Effects) {
	out.Messages = append(out.Messages, Message{Kind: MsgInspected, Re: re, Held: 1, Mode: l.heldMode,
		Holders: l.nHolds, Waiters: l.nWaits, Left: t.deadline(l) - now, Fence: l.newestFence()})
}

// answerPeeks answers inspects that came before the lease did.
func (t *Table) answerPeeks(l *Lease, now int64, out *Effects) {
	if l.rare == nil || l.nHolds == 0 || l.op == OpPeek {
		return
	}
	for _, re := range l.rare.peeks {
		t.sayHeld(l, re, now, out)
	}
	l.rare.peeks = nil
}

func (l *Lease) newestFence() uint64 {
	f := l.fence
	for h := l.holds; h != nil && f == 0; h = h.next {
		f = h.fence
	}
	return f
}

// sorted is every lease in the order of their keys.
func (t *Table) sorted() []*Lease {
	ls := make([]*Lease, 0, len(t.leases))
	for _, l := range t.leases {
		ls = append(ls, l)
	}
	slices.SortFunc(ls, func(a, b *Lease) int { return strings.Compare(a.key, b.key) })
	return ls
}
