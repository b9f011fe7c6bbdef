package cache

import "github.com/locksidecar/locksidecar/protocol"

// Grants: at once, or from the queue.

// Acquire answers q at once, or queues it; then a later event answers it.
func (t *Table) Acquire(q *Acquire, now int64, out *Effects) {
	t.reuseDropped()
	if q.Mode == Permit {
		t.acquirePermit(q, now, out)
		return
	}
	l := t.lock(q.Key, q.NS)
	if l != nil {
		t.expire(l, now, out)
		if h := l.find(q.Re.Session, q.Owner); h != nil {
			l.restating(now, l.ttl)
			t.reenter(h, q.Re, q.Mode, 0, out)
			return // nothing else follows from a re-entry
		}
	}
	if !t.answerNow(l, q, now, out) {
		if l == nil {
			l = t.lease(q.Key, q.NS)
		}
		t.enqueue(l, q, now, out)
	}
	if l != nil {
		t.advance(l, now, out)
	}
}

// answerNow answers q if it need not be queued, because it is refused. It reports whether it has
// done so. l is nil if the table does not know the key.
func (t *Table) answerNow(l *Lease, q *Acquire, now int64, out *Effects) bool {
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

// whyNotQueued returns the reason why q cannot even wait: a limit is reached, or the store is known
// to be down and this host may not decide alone.
func (t *Table) whyNotQueued(l *Lease, q *Acquire) (protocol.Code, error) {
	if err := t.mayHold(q.Re.Session, q.NS); err != nil {
		return protocol.Limit, err
	}
	if err := t.mayWait(q.Re.Session, q.NS); err != nil {
		return protocol.Limit, err
	}
	st := t.store(q.NS.Store)
	mayDegrade := q.NS.Local && q.Mode != Permit // how many permits others have cannot be known
	if st.downAt != 0 && !mayDegrade && (l == nil || !l.heldUpstream() || l.st != st) {
		return protocol.Unavailable, st.err
	}
	return protocol.OK, nil
}

// reenter answers an acquire whose owner already has the hold h. The acquire has waited for took.
func (t *Table) reenter(h *hold, re Request, m Mode, took int64, out *Effects) {
	if h.mode == Shared && m == Exclusive {
		t.refused(h.l.ns, re, Notice{Mode: m, Code: protocol.Upgrade, Key: h.l.key, Owner: h.owner,
			Took: took}, -1, nil, out)
		return
	}
	h.count++
	t.statsOf(h.l.ns).Acquires[OutReentered]++
	t.sayGranted(h, re, out)
}

// reenterWaits turns the other waits of h's owner for this key into re-entries.
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

func (t *Table) sayGranted(h *hold, re Request, out *Effects) {
	out.Messages = append(out.Messages, t.grantOf(h, re))
}

func (t *Table) grantOf(h *hold, re Request) Message {
	return Message{Kind: MsgGranted, Re: re, Fence: h.fence, Count: h.count,
		Until: t.valid(h), End: h.end, Degraded: h.fence == 0,
		Store: h.l.st.StoreTraits, Heartbeat: h.l.ns.Heartbeat, ShortTTL: h.l.ttl}
}

// Restate returns the message of a grant with its present values. ok is false if the owner no
// longer has that hold.
func (t *Table) Restate(s *Session, key []byte, owner, fence uint64, now int64,
	out *Effects) (m Message, ok bool) {
	l := t.locks[string(key)].lease()
	if l == nil {
		return m, false
	}
	t.expire(l, now, out)
	h := l.find(s, owner)
	if ok = h != nil && h.fence == fence; ok {
		l.restating(now, l.ttl)
		m = t.grantOf(h, Request{Session: s})
	}
	t.advance(l, now, out) // expire may have ended it
	return m, ok
}

// refusesTry answers a try that cannot succeed: a try takes a key only if nobody holds it or waits
// for it.
func (t *Table) refusesTry(l *Lease, q *Acquire, now int64, out *Effects) bool {
	degraded := l.state != stateHeld && t.grantsDegraded(l, now) // then the store does not matter
	before := t.behindOthers(l, q, degraded, now)
	switch {
	case l.nHolds > 0 && before:
		t.refuse(q, protocol.Busy, nil, out)
	case !degraded && l.state != stateHeld && l.pausesAfterFailure(now):
		t.refuse(q, protocol.Unavailable, l.optional.err, out)
	case before, !degraded && l.state == stateAsked && l.asked.queued && !l.triesMayWait(now):
		t.refuse(q, protocol.Busy, nil, out)
	default:
		return false
	}
	return true
}

// behindOthers reports whether q would have to wait for holders or waiters on this host. A reader
// joins readers, unless others wait.
func (t *Table) behindOthers(l *Lease, q *Acquire, degraded bool, now int64) bool {
	if blocked := l.queue().blocks(q); blocked || l.nHolds == 0 {
		return blocked
	}
	joins := q.Mode == Shared && l.heldMode == Shared && l.queue().empty()
	return !joins || !degraded && !t.mayHandoff(l, now)
}
