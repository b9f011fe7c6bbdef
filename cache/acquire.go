package cache

// Grants: at once, or from the queue.

// Acquire is a request for a key. Times are in nanoseconds. A Wait of 0 means a try, and Forever
// means a wait without bound. The table copies Key if it keeps it.
type Acquire struct {
	Re    Request
	NS    *Namespace // of the key
	Key   []byte
	Owner uint64
	Mode  Mode
	Wait  int64
	TTL   int64
	Fixed bool
	Limit uint32 // Mode Permit: how many permits the semaphore has, from 1
	// Draining makes the table refuse everything except re-entry.
	Draining bool
}

// Acquire answers q at once, or queues it; then a later event answers it.
func (t *Table) Acquire(q *Acquire, now int64, out *Effects) {
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
			return
		}
		if q.Wait == 0 && t.refusesTry(l, q, now, out) {
			t.advance(l, now, out)
			return
		}
	}
	if q.Draining || q.Re.Session.Ended.Load() {
		t.refuse(q, CodeDraining, nil, out)
		if l != nil {
			t.advance(l, now, out)
		}
		return
	}
	if code, err := t.refuses(l, q); code != CodeOK {
		t.refuse(q, code, err, out)
		if l != nil {
			t.advance(l, now, out)
		}
		return
	}
	if l == nil {
		l = t.lease(q.Key, q.NS)
	}
	t.enqueue(l, q, now)
	t.advance(l, now, out)
}

// refuses returns the reason why q cannot even wait: a limit is reached, or the store is known to be
// down and this host may not decide alone.
func (t *Table) refuses(l *Lease, q *Acquire) (Code, error) {
	if err := t.mayHold(q.Re.Session, q.NS); err != nil {
		return CodeLimit, err
	}
	if err := t.mayWait(q.Re.Session, q.NS); err != nil {
		return CodeLimit, err
	}
	st := t.store(q.NS.Store)
	alone := q.NS.Local && q.Mode != Permit // how many permits others have cannot be known
	if st.downAt != 0 && !alone && (l == nil || !l.heldUpstream() || l.st != st) {
		return CodeUnavailable, st.err
	}
	return CodeOK, nil
}

// reenter answers an acquire whose owner already has the hold h. The acquire has waited for took.
func (t *Table) reenter(h *hold, re Request, m Mode, took int64, out *Effects) {
	if h.mode == Shared && m == Exclusive {
		t.refused(h.l.ns, re, Notice{Mode: m, Code: CodeUpgrade, Key: h.l.key, Owner: h.owner, Took: took}, -1, nil, out)
		return
	}
	h.count++
	t.statsOf(h.l.ns).Acquires[OutReentered]++
	t.sayGranted(h, re, true, out)
}

// reenterWaits turns the other waits of h's owner for this key into re-entries.
func (t *Table) reenterWaits(h *hold, now int64, out *Effects) {
	l := h.l
	if l.head != nil {
		return // each acquire takes a permit of its own
	}
	if r := l.optional; r != nil && r.byWaiter != nil && r.byWaiter[ownerKey{h.s, h.owner}] == 0 {
		return
	}
	for w := l.waitHead; w != nil; {
		next := w.next
		if w.owner == h.owner && w.req.Session == h.s {
			t.reenter(h, w.req, w.mode, now-w.since, out)
			t.dropWaiter(w)
		}
		w = next
	}
}

func (t *Table) sayGranted(h *hold, re Request, acquired bool, out *Effects) {
	out.Messages = append(out.Messages, t.grantOf(h, re, acquired))
}

func (t *Table) grantOf(h *hold, re Request, acquired bool) Message {
	return Message{Kind: MsgGranted, Re: re, Fence: h.fence, Count: h.count,
		Until: t.valid(h), End: h.end, Granted: acquired, Degraded: h.fence == 0,
		Store: h.l.st.Store, Heartbeat: h.l.ns.Heartbeat, ShortTTL: h.l.ttl}
}

// Restate returns the message of a grant with its present values. ok is false if the owner no longer
// has that hold.
func (t *Table) Restate(s *Session, key []byte, owner, fence uint64, now int64, out *Effects) (m Message, ok bool) {
	l := t.leases[string(key)]
	if l == nil {
		return m, false
	}
	t.expire(l, now, out)
	h := l.find(s, owner)
	if ok = h != nil && h.fence == fence; ok {
		l.restating(now, l.ttl)
		m = t.grantOf(h, Request{Session: s}, true)
	}
	t.advance(l, now, out) // expire may have ended it
	return m, ok
}

// refusesTry answers a try that cannot succeed: a try takes a key only if nobody holds it or waits
// for it.
func (t *Table) refusesTry(l *Lease, q *Acquire, now int64, out *Effects) bool {
	if r := l.optional; r != nil && r.fails > 0 && now < l.retryAt && l.state != stateHeld {
		t.refuse(q, CodeUnavailable, r.err, out)
		return true
	}
	before := l.waitHead != nil && (q.Mode == Exclusive || l.nWriters > 0)
	if l.nHolds > 0 {
		before = before || q.Mode == Exclusive || l.heldMode == Exclusive || l.waitHead != nil || !t.mayHandoff(l, now)
	}
	if before || l.state == stateAsked && l.queued && !l.inMoment(now) {
		t.refuse(q, CodeBusy, nil, out)
		return true
	}
	return false
}

// mayHandoff reports whether a handoff to another local owner is allowed. While another host waits, only
// MaxHandoffs of them are, for up to MaxHandoffTime, counted from when this host learned of it.
func (t *Table) mayHandoff(l *Lease, now int64) bool {
	if most := l.ns.Tenure; most > 0 && now-l.since >= int64(most) {
		return false
	}
	if !l.contended {
		return true
	}
	r := l.withOptional()
	return r.handoffs < l.ns.MaxHandoffs && now-r.contendedAt < max(int64(l.ns.MaxHandoffTime), handoffTrips*l.st.trip)
}

// handoffTrips are the round trips to the store that handoffs may go on for, however
// short their time: to change hosts takes some.
const handoffTrips = 5

func (t *Table) setContended(l *Lease, now int64) {
	if l.contended {
		return
	}
	l.contended = true
	t.contested(l, true, now)
	r := l.withOptional()
	r.contendedAt, r.handoffs = now, 0
}

// verdict says whether a waiter may hold now.
type verdict uint8

const (
	never verdict = iota // not with this lease as it is, or not before a hold ends
	later                // once the lease has been renewed
	yes
)

// handoff grants holds to the waiters, in their order, as far as the lease allows. It refuses tries that
// cannot succeed. fresh is true if the lease has just come from the store.
func (t *Table) handoff(l *Lease, now int64, fresh bool, out *Effects) {
	if l.state != stateHeld {
		if t.isAlone(l, now) {
			t.handoffAlone(l, now, out)
		}
		return
	}
	l.starved = false
	from := l.queue()
	for w := from.waitHead; w != nil; w = from.waitHead {
		v := t.admits(l, w, now, fresh)
		if v == later {
			l.starved = true
			l.ttl = max(l.ttl, w.ttl)
			if st := l.st; st.sessionShort(w.ttl, now) {
				l.retryAt = now + int64(st.SessionTTL)/30 // the session is being renewed
			}
			t.renew(l, now, out)
		}
		if v != yes {
			break
		}
		if t.passes(w, now, out) {
			continue
		}
		if !fresh {
			t.countHandoff(l, w)
		}
		t.grant(l, w, now, fresh, out)
	}
	if l.nHolds == 0 {
		return
	}
	l.stays(out)
	if l.head == nil { // else the semaphore may have more permits
		t.refuseTries(l, CodeBusy, -1, now, out)
	}
}

// passes refuses w, whose turn has come, if it may no longer hold the key. It reports whether it has done so.
func (t *Table) passes(w *waiter, now int64, out *Effects) bool {
	err := t.mayHold(w.req.Session, w.l.ns)
	if err != nil {
		t.dismiss(w, CodeLimit, -1, err, now, out)
	}
	return err != nil
}

// countHandoff counts a grant that needed no request to the store.
func (t *Table) countHandoff(l *Lease, w *waiter) {
	s := t.statsOf(l.ns)
	s.Handoffs++
	if l.idleUntil() != 0 {
		s.Lingered++
	}
	if l.contended {
		l.withOptional().handoffs++
	}
}

func (t *Table) admits(l *Lease, w *waiter, now int64, fresh bool) verdict {
	st := l.st
	if l.moved() {
		return never // this lease is given up first
	}
	if w.mode == Permit && (l.nHolds > 0 || l.head.sem.over()) {
		return never
	}
	if w.mode == Exclusive && (l.nHolds > 0 || l.mode != Exclusive || l.downgrade || l.op == OpDowngrade) {
		return never
	}
	if w.mode == Shared && l.nHolds > 0 && l.heldMode != Shared {
		return never
	}
	if !fresh && !t.mayHandoff(l, now) {
		return never
	}
	// A handoff that cannot give a third of the TTL renews first.
	if st.sessionShort(w.ttl, now) {
		return later
	}
	if st.renews() && !fresh && l.until-now < w.ttl/3 {
		return later
	}
	if l.handoff >= maxHandoff && !t.sharesFence(l, w.mode) {
		if st.Rebase {
			l.rebase = true
			return later
		}
		return never
	}
	return yes
}
