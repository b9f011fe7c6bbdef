package cache

import "github.com/locksidecar/locksidecar/protocol"

// This file renews leases, for the renewer and for clients.

// Renew is a client's request to renew a hold.
type Renew struct {
	Re    Request
	Key   []byte
	Owner uint64
	Fence uint64
	TTL   int64 // nanoseconds; 0 for the present TTL of the hold
}

// Renew carries out q. It answers with the new validity when the store has confirmed it.
func (t *Table) Renew(q *Renew, now int64, out *Effects) {
	l, h := t.holdOrFail(q.Re, q.Key, q.Owner, q.Fence, now, out)
	if h == nil {
		return
	}
	ttl := q.TTL
	if ttl == 0 {
		ttl = l.ttl
	}
	if !l.st.renews() || l.state != stateHeld {
		l.extendDegraded(now, ttl)
		t.extendHold(h, ttl, now+ttl)
		t.answerGranted(h, q.Re, out)
		t.advance(l, now, out)
		return
	}
	if err := t.mayAsk(q.Re.Session); err != nil {
		out.fail(q.Re, protocol.Limit, err)
		t.advance(l, now, out)
		return
	}
	r := l.withOptional()
	r.clientRenewals = append(r.clientRenewals, clientRenewal{q.Re, q.Owner, q.Fence, ttl})
	q.Re.Session.addAsks(1)
	l.ttl = max(l.ttl, ttl)
	t.renewForClients(l, now, out)
	t.advance(l, now, out)
}

// extendHold sets the TTL of h's lease, which other readers may need to be longer, and moves the
// end of a fixed hold. It never moves it back, because the earlier end was stated.
func (t *Table) extendHold(h *hold, ttl, end int64) {
	if h.l.ttl = max(h.l.ttl, ttl); h.l.nHolds == 1 {
		h.l.ttl = ttl
	}
	if h.end == 0 {
		return
	}
	if h.maxEnd != 0 {
		end = min(end, h.maxEnd)
	}
	h.end = max(h.end, end)
}

// renew puts a renewal of l into the renewal lane, unless one is in flight or has just failed.
func (t *Table) renew(l *Lease, now int64, out *Effects) {
	if l.held.renewGen != 0 || l.state != stateHeld || now < l.retryAt {
		return
	}
	if !l.st.renews() && !l.held.rebase && !l.held.doubt && !l.held.unkept {
		return // the store session keeps the lease
	}
	l.held.doubt, l.held.unkept = false, false
	t.gen++
	l.held.renewGen = t.gen
	op := Op{Kind: OpRenew, Mode: l.mode, Rebase: l.held.rebase, Key: l.key, Token: l.token,
		Floor: t.floor(l), Until: l.held.until, Store: l.st.ID, Ref: l, Gen: t.gen}
	t.setTTL(&op, now)
	out.Ops = append(out.Ops, op)
}

// track tells the renewer of a change of l. Leases that are held, or will be, are renewed before
// they end.
func (t *Table) track(l *Lease, out *Effects) {
	if !l.st.renews() {
		return
	}
	if l.state != stateHeld || !t.needsRenewal(l) {
		if l.tracked {
			l.tracked = false
			out.Tracks = append(out.Tracks, Track{Lease: l, Store: l.st.ID})
		}
		return
	}
	if !l.tracked {
		l.tracked = true
		t.scheduleRenewal(l, false, out)
	}
}

func (t *Table) scheduleRenewal(l *Lease, failed bool, out *Effects) {
	out.Tracks = append(out.Tracks, Track{Lease: l, Token: l.token, Until: l.held.until, TTL: l.ttl,
		Failed: failed, Store: l.st.ID})
}

// needsRenewal reports whether l is held beyond its present deadline, or lingers.
func (t *Table) needsRenewal(l *Lease) bool {
	if l.nHolds == 0 {
		return l.idleUntil() != 0
	}
	if l.nHolds == 1 { // the common case
		h := l.holds.first
		return h.end == 0 || h.end > l.held.until
	}
	for h := range l.holds.all() {
		if h.end == 0 || h.end > l.held.until {
			return true
		}
	}
	return false
}

// RenewDue tells the table that l is due for renewal. The renewer calls it.
func (t *Table) RenewDue(l *Lease, token uint64, now int64, out *Effects) {
	if l.state != stateHeld || l.token != token || !l.tracked {
		return
	}
	t.expire(l, now, out)
	t.renew(l, now, out)
	if l.state == stateHeld && l.held.renewGen == 0 && l.tracked {
		t.scheduleRenewal(l, true, out)
		return
	}
	t.advance(l, now, out)
}

// extendDeadline moves the deadline of l after the renewal op. It never moves the deadline back,
// because a validity up to it may have been stated.
func (t *Table) extendDeadline(l *Lease, op *Op, sent int64) {
	if !l.st.renews() {
		return
	}
	l.held.until = max(l.held.until, LeaseDeadline(sent, op.stated()))
	l.held.kept = max(l.held.kept, LeaseDeadline(sent, int64(op.TTL)))
}

// renewalAnswered handles the answer to a renewal, if it is still about the lease that is held.
func (t *Table) renewalAnswered(l *Lease, op *Op, r *Result, sent, now int64, out *Effects) {
	if l.state != stateHeld || l.token != op.Token {
		return
	}
	st := &l.st.stats
	switch r.Status {
	case Done, Granted:
		st.Renewed++
		if l.held.until != Forever {
			st.Slack.Observe(t.deadline(l) - now)
		}
		if t.expire(l, now, out); l.state != stateHeld {
			return // another host may have held the key since, and a late acquire brought the lease back
		}
		t.extendDeadline(l, op, sent)
		t.forgetReleased(l)
		l.retryAt = 0
		if op.Rebase && r.Base > l.held.base && r.Base <= MaxBase {
			// Readers that hold the key now keep their fence. The next holder gets a larger one.
			l.held.base, l.held.handoff, l.held.rebase = r.Base, -1, false
		}
		if r.Contended {
			t.setContended(l, now)
		}
		t.retrack(l, false, out)
		t.answerClientRenewals(l, op, now, out)
	case NotHeld:
		st.NotHeld++
		switch {
		case l.held.downgrade && l.nHolds > 0:
			t.retrack(l, true, out) // the lease may be shared by now: the downgrade's answer decides
			return
		case l.held.downgrade: // the last hold has ended, so the downgrade is pointless
			t.beginRelease(l, now, out)
			return
		}
		t.loseLease(l, protocol.LostGone, now, out)
	default:
		st.Unanswered++
		t.renewalUnanswered(l, r.Err, now, out)
	}
}

// renewalUnanswered handles a renewal of l that the store has not answered, for the reason err.
func (t *Table) renewalUnanswered(l *Lease, err error, now int64, out *Effects) {
	l.retryAt = now + int64(t.cfg.RetryMin)
	l.held.doubt = !l.st.renews() // the renewer repeats the renewal at other stores
	l.held.unkept = l.held.unkept || l.held.doubt && l.keepTTL(now) > 0
	t.retrack(l, true, out)
	t.failClientRenewals(l, protocol.Unavailable, err, out)
}

// retrack tells the renewer the new deadline of l, or that its last renewal has failed.
func (t *Table) retrack(l *Lease, failed bool, out *Effects) {
	if l.tracked && l.state == stateHeld {
		t.scheduleRenewal(l, failed, out)
	}
}

// answerClientRenewals answers the clients' renewals that this op has carried out.
func (t *Table) answerClientRenewals(l *Lease, op *Op, now int64, out *Effects) {
	r := l.optional
	if r == nil || len(r.clientRenewals) == 0 {
		return
	}
	rest := r.clientRenewals[:0]
	for _, x := range r.clientRenewals {
		h := l.find(x.req.Session, x.owner)
		x.req.Session.addAsks(-1)
		switch {
		case h == nil || h.fence != x.fence:
			out.fail(x.req, protocol.NotHeld, nil)
		case x.ttl > op.stated(): // the client asked for a longer TTL after this renewal had been sent
			x.req.Session.addAsks(1)
			rest = append(rest, x)
		default:
			t.extendHold(h, x.ttl, min(now+x.ttl, l.held.until))
			t.answerGranted(h, x.req, out)
		}
	}
	clear(r.clientRenewals[len(rest):])
	r.clientRenewals = rest
	t.renewForClients(l, now, out)
}

// renewForClients sends a renewal for the clients' renewals that no renewal in flight will answer.
func (t *Table) renewForClients(l *Lease, now int64, out *Effects) {
	if l.optional == nil || len(l.optional.clientRenewals) == 0 {
		return
	}
	for _, x := range l.optional.clientRenewals {
		l.ttl = max(l.ttl, x.ttl) // an answer to another of them may have shortened it
	}
	t.renew(l, now, out)
	if l.held.renewGen == 0 { // the store has just failed, so no renewal is sent to it yet
		t.failClientRenewals(l, protocol.Unavailable, nil, out)
	}
}

// failClientRenewals answers the clients' renewals of l with an error.
func (t *Table) failClientRenewals(l *Lease, c protocol.Code, err error, out *Effects) {
	if l.optional == nil {
		return
	}
	for _, x := range l.optional.clientRenewals {
		x.req.Session.addAsks(-1)
		out.fail(x.req, c, err)
	}
	l.optional.clientRenewals = nil
}
