package cache

// Renewals: those that keep leases, and those that clients request.

// renew puts a renewal of l into the renewal lane, unless one is in flight or has just failed.
func (t *Table) renew(l *Lease, now int64, out *Effects) {
	if l.renewGen != 0 || l.state != stateHeld || now < l.retryAt {
		return
	}
	if !l.st.renews() && !l.rebase && !l.doubt {
		return // the session keeps it
	}
	l.doubt = false
	t.gen++
	l.renewGen = t.gen
	out.Ops = append(out.Ops, Op{Kind: OpRenew, Mode: l.mode, Rebase: l.rebase, Key: l.key, Token: l.token,
		TTL: t.askTTL(l, now), Floor: t.floor(l), Store: l.st.ID, Ref: l, Gen: t.gen})
}

// track tells the renewer of a change of l. Leases that are held, or will be, are renewed before they end.
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
		t.keep(l, false, out)
	}
}

func (t *Table) keep(l *Lease, failed bool, out *Effects) {
	out.Tracks = append(out.Tracks, Track{Lease: l, Gen: l.token, Until: l.until, TTL: l.ttl, Failed: failed, Store: l.st.ID})
}

// needsRenewal reports whether l is held beyond its present deadline, or lingers.
func (t *Table) needsRenewal(l *Lease) bool {
	if l.nHolds == 0 {
		return l.idleUntil() != 0
	}
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

// RenewDue tells the table that l is due for renewal. The renewer calls it.
func (t *Table) RenewDue(l *Lease, gen uint64, now int64, out *Effects) {
	if l.state != stateHeld || l.token != gen || !l.tracked {
		return
	}
	t.expire(l, now, out)
	t.renew(l, now, out)
	if l.state == stateHeld && l.renewGen == 0 && l.tracked {
		t.keep(l, true, out)
		return
	}
	t.advance(l, now, out)
}

// extend moves the deadline of l. It never moves it back, because a validity up to it may have been stated.
func (t *Table) extend(l *Lease, op *Op, sent int64) {
	if l.st.renews() {
		l.until = max(l.until, LeaseDeadline(sent, int64(op.TTL)))
	}
}

func (t *Table) renewed(l *Lease, op *Op, r *Result, sent, now int64, out *Effects) {
	if l.state != stateHeld || l.token != op.Token {
		return
	}
	st := &l.st.stats
	switch r.Status {
	case Done, Granted:
		st.Renewed++
		if l.until != Forever {
			st.Slack.Observe(t.deadline(l) - now)
		}
		if t.expire(l, now, out); l.state != stateHeld {
			return // another host may have held it since, and a late ask have brought it back
		}
		t.extend(l, op, sent)
		t.dropLast(l)
		l.retryAt = 0
		if op.Rebase && r.Base > l.base && r.Base <= MaxBase {
			l.base, l.handoff, l.rebase = r.Base, -1, false
			// A phase of readers under way keeps its fence; later ones get a larger.
		}
		if r.Contended {
			t.setContended(l, now)
		}
		t.retrack(l, false, out)
		t.finishExtends(l, op, now, out)
	case NotHeld:
		st.NotHeld++
		switch {
		case l.downgrade && l.nHolds > 0:
			t.retrack(l, true, out) // it may be shared by now: the downgrade's answer decides
			return
		case l.downgrade: // with the last hold, the downgrade is no longer of use
			t.beginRelease(l, now, out)
			return
		}
		t.gone(l, LostGone, now, out)
	default:
		st.Unanswered++
		l.retryAt = now + int64(t.cfg.RetryMin)
		l.doubt = !l.st.renews() // where nothing else would ask again
		t.retrack(l, true, out)
		t.endExtends(l, CodeUnavailable, r.Err, out)
	}
}

func (t *Table) retrack(l *Lease, failed bool, out *Effects) {
	if l.tracked && l.state == stateHeld {
		t.keep(l, failed, out)
	}
}

// finishExtends answers the clients' renewals that this op has carried out.
func (t *Table) finishExtends(l *Lease, op *Op, now int64, out *Effects) {
	r := l.optional
	if r == nil || len(r.extends) == 0 {
		return
	}
	rest := r.extends[:0]
	ttl := int64(0)
	for _, x := range r.extends {
		h := l.find(x.req.Session, x.owner)
		x.req.Session.addAsks(-1)
		switch {
		case h == nil || h.fence != x.fence:
			out.fail(x.req, CodeNotHeld, nil)
		case x.ttl > int64(op.TTL): // asked for after this one had been sent
			x.req.Session.addAsks(1)
			rest = append(rest, x)
		default:
			ttl = max(ttl, x.ttl)
			t.extendHold(h, x.ttl, min(now+x.ttl, l.until))
			t.sayGranted(h, x.req, false, out)
		}
	}
	clear(r.extends[len(rest):])
	r.extends = rest
	t.renewForClients(l, now, out)
}

// renewForClients sends a renewal for the clients' renewals that no renewal in flight will answer.
func (t *Table) renewForClients(l *Lease, now int64, out *Effects) {
	if l.optional == nil || len(l.optional.extends) == 0 {
		return
	}
	t.renew(l, now, out)
	if l.renewGen == 0 { // the store has just failed, and is not to be pressed
		t.endExtends(l, CodeUnavailable, nil, out)
	}
}

func (t *Table) endExtends(l *Lease, c Code, err error, out *Effects) {
	if l.optional == nil {
		return
	}
	for _, x := range l.optional.extends {
		x.req.Session.addAsks(-1)
		out.fail(x.req, c, err)
	}
	l.optional.extends = nil
}
