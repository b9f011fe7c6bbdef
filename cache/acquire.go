package cache

import "github.com/locksidecar/locksidecar/protocol"

// This file handles acquires. Each is answered at once or queued.

// Acquire answers q if its owner holds the key already, or if q must be refused. Otherwise it
// queues q, and advance grants it at once if the lease allows that. If not, a later event answers
// it.
func (t *Table) Acquire(q *Acquire, now int64, out *Effects) {
	t.reuseDropped()
	if q.Mode == Permit {
		t.acquirePermit(q, now, out)
		return
	}
	l := t.findLease(q.Key, q.NS)
	if l != nil {
		t.expire(l, now, out)
		if h := l.find(q.Re.Session, q.Owner); h != nil {
			l.extendDegraded(now, l.ttl) // because the answer states a validity
			t.reenter(h, q.Re, q.Mode, 0, out)
			return // without advance: h was there before, so no waiter can be served now
		}
	}
	if !t.refuseNow(l, q, now, out) {
		if l == nil {
			l = t.lease(q.Key, q.NS)
		}
		t.enqueue(l, q, now, out)
	}
	if l != nil {
		t.advance(l, now, out)
	}
}

// refuseNow refuses q if a wait would not help. It reports whether it has done so. l is nil if the
// table does not know the key.
func (t *Table) refuseNow(l *Lease, q *Acquire, now int64, out *Effects) bool {
	if l != nil && q.Wait == 0 && t.refusesTry(l, q, now, out) {
		return true
	}
	if q.Draining {
		t.refuse(q, protocol.Draining, nil, out)
		return true
	}
	if code, err := t.whyNotQueued(l, q); code != protocol.OK {
		t.refuse(q, code, err, out)
		return true
	}
	return false
}

// whyNotQueued returns OK, or the code and reason why q may not even wait. Either a limit is
// reached, or the store is known to be down and this host may not decide alone.
func (t *Table) whyNotQueued(l *Lease, q *Acquire) (protocol.Code, error) {
	if err := t.mayHold(q.Re.Session, q.NS, q.Keep); err != nil {
		return protocol.Limit, err
	}
	if err := t.mayWait(q.Re.Session, q.NS); err != nil {
		return protocol.Limit, err
	}
	st := t.store(q.NS.Store)
	// This host cannot know alone how many permits other hosts have.
	mayDegrade := q.NS.Local && q.Mode != Permit
	if st.downAt != 0 && !mayDegrade && (l == nil || !l.heldUpstream() || l.st != st) {
		return protocol.Unavailable, st.err
	}
	return protocol.OK, nil
}

// reenter answers an acquire whose owner already has the hold h. The acquire has waited for took.
func (t *Table) reenter(h *hold, re Request, m Mode, took int64, out *Effects) {
	if h.mode == Shared && m == Exclusive {
		t.answerRefused(h.l.ns, re, Notice{Mode: m, Code: protocol.Upgrade, Key: h.l.key, Owner: h.owner,
			Took: took}, -1, nil, out)
		return
	}
	if !re.claim() {
		t.answerRefused(h.l.ns, re, Notice{Code: protocol.Canceled}, -1, nil, out)
		return
	}
	h.count++
	t.statsOf(h.l.ns).Acquires[OutReentered]++
	t.answerGranted(h, re, out)
}

// reenterWaits turns the other waits of h's owner for this key into re-entries, because h has just
// been granted. It refuses those that would be upgrades.
func (t *Table) reenterWaits(h *hold, now int64, out *Effects) {
	l := h.l
	if !l.isLock() {
		return // each acquire takes a permit of its own
	}
	for w := range l.queue().of(ownerKey{h.s, h.owner}) {
		t.reenter(h, w.req, w.mode, now-w.since, out)
		t.dropWaiter(w)
	}
}

func (t *Table) answerGranted(h *hold, re Request, out *Effects) {
	out.Messages = append(out.Messages, t.grantOf(h, re))
}

func (t *Table) grantOf(h *hold, re Request) Message {
	return Message{Kind: MsgGranted, Re: re, Fence: h.fence, Count: h.count,
		Until: t.validUntil(h), End: h.end, Degraded: h.fence == 0, Bound: h.bound(),
		Store: h.l.st.StoreTraits, Heartbeat: h.l.ns.Heartbeat, ShortTTL: h.l.ttl}
}

// Restate returns the message of an earlier grant with its present values. A multi-acquire gets its
// keys one after the other, and uses Restate to answer with all grants at once. ok is false if the
// owner no longer has that hold.
func (t *Table) Restate(s *Session, key []byte, owner, fence uint64, now int64,
	out *Effects) (m Message, ok bool) {
	l := t.locks[string(key)].lease()
	if l == nil {
		return m, false
	}
	t.expire(l, now, out)
	h := l.find(s, owner)
	if ok = h != nil && h.fence == fence; ok {
		l.extendDegraded(now, l.ttl)
		m = t.grantOf(h, Request{Session: s})
	}
	t.advance(l, now, out) // expire may have ended it
	return m, ok
}

// Here says whether this host can grant an acquire without its store.
type Here uint8

// The values of Here.
const (
	HereNothing Here = iota // the store has to be asked, or the acquire has to wait
	HereLease               // this host has a lease that it can use at once
	HereHold                // the owner has a hold, which would be re-entered
)

// Here says whether this host could grant q now. It changes nothing, so the answer is only a hint.
func (t *Table) Here(q *Acquire, now int64) Here {
	l := t.locks[string(q.Key)].lease()
	switch {
	case l == nil || now >= t.deadline(l):
	case l.find(q.Re.Session, q.Owner) != nil:
		if q.Mode == Shared || l.heldMode == Exclusive {
			return HereHold
		}
	case l.state == stateHeld && l.queue().empty() &&
		t.admits(l, &waiter{mode: q.Mode, ttl: q.TTL}, now, false) == admitNow:
		return HereLease
	}
	return HereNothing
}

// refusesTry refuses a try that cannot succeed, and reports whether it has done so. A try takes a
// key only if nobody holds it or waits for it.
func (t *Table) refusesTry(l *Lease, q *Acquire, now int64, out *Effects) bool {
	degraded := l.state != stateHeld && t.grantsDegraded(l, now) // this host decides without the store
	behind := t.behindOthers(l, q, degraded, now)
	queuedAtStore := l.state == stateAsked && l.asked.queued // other hosts are before this one
	switch {
	case l.nHolds > 0 && behind:
		t.refuse(q, protocol.Busy, nil, out)
	case !degraded && l.state != stateHeld && l.pausesAfterFailure(now):
		t.refuse(q, protocol.Unavailable, l.optional.err, out)
	case behind, !degraded && queuedAtStore && !l.triesMayWait(now):
		t.refuse(q, protocol.Busy, nil, out)
	default:
		return false
	}
	return true
}

// behindOthers reports whether q would have to wait for holders or waiters on this host. A reader
// joins the readers that hold the key, unless a waiter is before it.
func (t *Table) behindOthers(l *Lease, q *Acquire, degraded bool, now int64) bool {
	if blocked := l.queue().blocks(q); blocked || l.nHolds == 0 {
		return blocked
	}
	joins := q.Mode == Shared && l.heldMode == Shared && l.queue().comesFirst(q)
	return !joins || !degraded && !t.mayHandoff(l, now)
}
