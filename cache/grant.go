package cache

import "github.com/locksidecar/locksidecar/protocol"

// This file grants holds to the waiters that a lease can serve.

// serveQueue grants holds to the waiters of l, in their order, as far as the lease allows. It
// refuses tries that cannot succeed. fresh is true if the store has just granted the lease;
// otherwise each grant is a handoff.
func (t *Table) serveQueue(l *Lease, now int64, fresh bool, out *Effects) {
	if l.state != stateHeld {
		if t.grantsDegraded(l, now) {
			t.serveQueueDegraded(l, now, out)
		}
		return
	}
	l.held.starved = false
	queue := l.queue()
	for w := queue.front(); w != nil; w = queue.front() {
		verdict := t.admits(l, w, now, fresh)
		if verdict == admitAfterRenewal {
			l.held.starved = true
			l.ttl = max(l.ttl, w.ttl)
			if st := l.st; st.sessionShort(w.ttl, now) {
				l.retryAt = now + st.sessionTTL()/30 // the session is being renewed
			}
			t.renew(l, now, out)
		}
		if verdict != admitNow {
			break
		}
		if t.turnAway(w, now, out) {
			continue
		}
		if !fresh {
			t.countHandoff(l)
		}
		t.grant(l, w, now, fresh, out)
	}
	if l.nHolds == 0 {
		return
	}
	l.confirmReleaser(out) // no release is needed, because the lease stays with this host
	if l.isLock() {        // a semaphore may have another permit for a try
		t.refuseTries(l, protocol.Busy, -1, now, out)
	}
}

// turnAway refuses w, whose turn has come, if it may no longer hold the key: a limit is reached, or
// an alternative has been granted. It reports whether it has done so. If it has not, w has to be
// granted.
func (t *Table) turnAway(w *waiter, now int64, out *Effects) bool {
	if err := t.mayHold(w.req.Session, w.l.ns, w.keep); err != nil {
		t.dismiss(w, protocol.Limit, -1, err, now, out)
		return true
	}
	if !w.req.claim() {
		t.dismiss(w, protocol.Canceled, -1, nil, now, out)
		return true
	}
	return false
}

// countHandoff counts a grant that needed no request to the store.
func (t *Table) countHandoff(l *Lease) {
	s := t.statsOf(l.ns)
	s.Handoffs++
	if l.idleUntil() != 0 {
		s.Lingered++
	}
	if l.held.contended {
		l.withOptional().handoffs++
	}
}

// verdict says whether a waiter may hold now.
type verdict uint8

const (
	admitNo           verdict = iota // not with this lease as it is, or not before a hold ends
	admitAfterRenewal                // once the lease has been renewed
	admitNow
)

// admits says whether w may hold l now. fresh is true if the store has just granted the lease.
func (t *Table) admits(l *Lease, w *waiter, now int64, fresh bool) verdict {
	st := l.st
	switch {
	case l.moved(): // a reload has routed the key elsewhere: this lease is released first
		return admitNo
	case !l.fits(w), !fresh && !t.mayHandoff(l, now), l.keptTooLong(w.ttl, now):
		return admitNo
	// A handoff has to give the next holder a third of its TTL. Otherwise the renewal comes first.
	case st.sessionShort(w.ttl, now), st.renews() && !fresh && l.held.until-now < w.ttl/3:
		return admitAfterRenewal
	case l.held.handoff < maxHandoff || t.sharesFence(l, w.mode):
		return admitNow
	case st.Rebase:
		l.held.rebase = true
		return admitAfterRenewal
	}
	return admitNo
}

// fits reports whether the mode of l, and the holds of l, allow one more hold for w.
func (l *Lease) fits(w *waiter) bool {
	switch w.mode {
	case Permit:
		return l.nHolds == 0 && !l.permit().of.over()
	case Exclusive:
		return l.nHolds == 0 && l.mode == Exclusive && !l.held.downgrade && l.op != OpDowngrade
	}
	return l.nHolds == 0 || l.heldMode == Shared
}

// mayHandoff reports whether a handoff to another local owner is allowed. While another host waits,
// up to MaxHandoffs handoffs are allowed, for up to MaxHandoffTime. Both count from when this host
// learned that the key is contended. Tenure bounds the handoffs of keys for which other hosts
// cannot queue.
func (t *Table) mayHandoff(l *Lease, now int64) bool {
	if tenure := l.ns.Tenure; tenure > 0 && now-l.held.since >= int64(tenure) {
		return false
	}
	if !l.held.contended {
		return true
	}
	r := l.withOptional()
	longest := max(int64(l.ns.MaxHandoffTime), handoffTrips*l.st.trip)
	return r.handoffs < l.ns.MaxHandoffs && now-r.contendedAt < longest
}

// handoffTrips is a lower bound of the time for handoffs, in round trips to the store. A change of
// hosts takes several round trips, so a shorter time would not pay for it.
const handoffTrips = 5

// setContended records that another host waits for l. The limits on handoffs count from then.
func (t *Table) setContended(l *Lease, now int64) {
	if l.held.contended {
		return
	}
	l.held.contended = true
	t.countForeignUse(l, true, now)
	r := l.withOptional()
	r.contendedAt, r.handoffs = now, 0
}

// grant makes a hold of l for w, and answers w. fresh is as in serveQueue.
func (t *Table) grant(l *Lease, w *waiter, now int64, fresh bool, out *Effects) {
	if l.nHolds == 0 {
		t.countReuse(l, now)
		t.forgetReleased(l) // a loss from here on concerns the new hold
	}
	if l.state == stateHeld && !t.sharesFence(l, w.mode) {
		t.nextFence(l)
		// While a semaphore moves to another store, a permit of the earlier store can have the same
		// base, and a hold with the same fence.
		for p := l.permit(); p != nil && p.of.byFence[l.held.fence] != nil; {
			t.nextFence(l)
		}
	}
	h := t.freeHolds.get()
	*h = hold{l: l, s: w.req.Session, owner: w.owner, fence: l.held.fence, count: 1, mode: w.mode,
		since: now}
	t.countGrant(h, w)
	if out.Audit {
		out.notice(NoticeAcquired, h, now-w.since)
	}
	h.setEnd(w, fresh)
	t.keep(h, w)
	if l.nHolds == 0 {
		l.ttl = w.ttl
	} else {
		l.ttl = max(l.ttl, w.ttl)
		t.joinDetached(l, w.ttl, now, out)
	}
	l.heldMode = w.mode
	l.holds.insert(h, nil)
	l.nHolds++
	t.holds.add(h)
	t.indexOwner(l, h)
	t.addToSession(h)
	re := w.req
	w.hadToWait = w.hadToWait && now > w.since // dropWaiter counts it
	t.dropWaiter(w)
	m := t.grantOf(h, re)
	m.Handoff = !fresh && l.state == stateHeld
	out.Messages = append(out.Messages, m)
	t.reenterWaits(h, now, out)
}

// setEnd sets the ends of h, which is being granted to w. A fixed hold has an end of its own. The
// namespace can bound the length of every hold.
func (h *hold) setEnd(w *waiter, fresh bool) {
	l := h.l
	if w.fixed {
		h.end = h.since + w.ttl
		if fresh && l.st.renews() && l.nHolds == 0 && l.ttl >= w.ttl && w.keep == 0 {
			// The lease was requested with this TTL. A hold that ends with it needs no renewal.
			h.end = min(h.end, l.held.until)
		}
	}
	if longest := int64(l.ns.MaxHold); longest > 0 {
		h.maxEnd = h.since + longest
		if h.end == 0 || h.end > h.maxEnd {
			h.end = h.maxEnd
		}
	}
	if h.end != 0 {
		l.minEnd = min(l.minEnd, h.end)
	}
}

// sharesFence reports whether a new hold in mode m gets the present fence of l, because it belongs
// to a reader that joins readers.
func (t *Table) sharesFence(l *Lease, m Mode) bool {
	return m == Shared && l.nHolds > 0 && l.held.fence != 0
}

// nextFence gives l the next fence: for one exclusive holder, or for readers that hold together.
// After many fences of one base, it has a new base fetched.
func (t *Table) nextFence(l *Lease) {
	l.held.handoff++
	if l.held.handoff >= handoffRebase && l.st.Rebase {
		l.held.rebase = true
	}
	l.held.fence = l.held.base<<handoffBits | uint64(l.held.handoff)
	if !l.isLock() {
		l.held.fence |= permitHandoffs
	}
}
