package cache

import (
	"errors"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file handles semaphores, which are keys with several permits. A semaphore's own lease is
// never requested; it has the queue. Each permit is a separate lease, which serves the first waiter
// in that queue. So no waiter waits for one permit while another is available.

// need returns how many permits have to be requested: one for each waiter, but no more than are
// left beside those held.
func (sem *semaphore) need() int {
	return min(int(sem.waits.n), max(0, int(sem.limit)-sem.taken))
}

// surplus returns how many permits are requested beyond need.
func (sem *semaphore) surplus() int { return len(sem.requested) - sem.need() }

// over reports whether this host holds more permits than exist, because the limit has been lowered.
func (sem *semaphore) over() bool { return sem.taken > int(sem.limit) }

// moves updates the counts for p, which moves to state to.
func (sem *semaphore) moves(p *permit, to state) {
	requested := func(s state) bool { return s == stateNone || s == stateAsked }
	switch was, is := requested(p.state), requested(to); {
	case was && !is:
		sem.dropRequested(p)
	case is && !was:
		sem.requested = append(sem.requested, p)
	}
	taken := func(s state) bool { return s == stateHeld || s == stateClosed }
	if taken(p.state) {
		sem.taken--
	}
	if taken(to) {
		sem.taken++
	}
}

func (sem *semaphore) dropRequested(p *permit) {
	if i := slices.Index(sem.requested, p); i >= 0 {
		sem.requested = slices.Delete(sem.requested, i, i+1)
	}
}

// drop forgets p, which is not held.
func (sem *semaphore) drop(p *permit) {
	sem.dropRequested(p)
	last := len(sem.permits) - 1
	sem.permits[p.place] = sem.permits[last]
	sem.permits[p.place].place = p.place
	sem.permits[last] = nil
	sem.permits = sem.permits[:last]
}

// heldUpstream reports whether l, or a permit of l, is held at the store.
func (l *Lease) heldUpstream() bool {
	sem := l.semaphore()
	return l.state == stateHeld || sem != nil && sem.taken > 0
}

// failingPermit returns a requested permit if the requests for all permits fail; otherwise nil.
func (sem *semaphore) failingPermit() *permit {
	if len(sem.requested) == 0 {
		return nil
	}
	for _, p := range sem.requested {
		if p.optional == nil || p.optional.failSince == 0 {
			return nil
		}
	}
	return sem.requested[0]
}

// semaphore returns the semaphore of a key, which it makes if there is none.
func (t *Table) semaphore(key []byte, ns *Namespace) *semaphore {
	if sem := t.semaphores[string(key)]; sem != nil {
		t.withPolicy(&sem.Lease, ns)
		return sem
	}
	sem := &semaphore{byFence: make(map[uint64]*hold)}
	sem.kind = sem
	sem.init(t, string(key), ns)
	t.semaphores[sem.key] = sem
	return sem
}

func (t *Table) newPermit(sem *semaphore) *permit {
	p := t.freePermits.get()
	p.kind, p.of, p.place = p, sem, int32(len(sem.permits))
	p.init(t, sem.key, sem.ns)
	sem.permits = append(sem.permits, p)
	sem.requested = append(sem.requested, p)
	return p
}

// acquirePermit answers q at once, or queues it. There is no re-entry: each acquire
// takes a permit.
func (t *Table) acquirePermit(q *Acquire, now int64, out *Effects) {
	if q.Draining {
		t.refuse(q, protocol.Draining, nil, out)
		return
	}
	l := t.withPolicy(t.semaphores[string(q.Key)].lease(), q.NS)
	if code, err := t.whyNotQueued(l, q); code != protocol.OK {
		t.refuse(q, code, err, out)
		return
	}
	sem := t.semaphore(q.Key, q.NS)
	sem.limit = q.Limit
	if q.Wait == 0 && t.refusesPermit(sem, q, now, out) {
		t.balance(sem, now, out)
		return
	}
	t.enqueue(&sem.Lease, q, now, out)
	t.balance(sem, now, out)
}

// refusesPermit refuses a try that cannot succeed, and reports whether it has done so.
func (t *Table) refusesPermit(sem *semaphore, q *Acquire, now int64, out *Effects) bool {
	if p := sem.failingPermit(); p != nil && now < p.retryAt {
		t.refuse(q, protocol.Unavailable, p.optional.err, out)
		return true
	}
	queued := slices.ContainsFunc(sem.requested, func(p *permit) bool { return p.asked.queued })
	if queued || int(sem.waits.n) >= int(sem.limit)-sem.taken {
		t.refuse(q, protocol.Busy, nil, out)
		return true
	}
	return false
}

// balance requests a permit for each waiter that could get one, and gives up the surplus. It
// forgets a semaphore that has neither waiters nor permits.
func (t *Table) balance(sem *semaphore, now int64, out *Effects) {
	l := &sem.Lease
	t.finishMove(l, out)
	for i := len(sem.requested) - 1; i >= 0 && sem.surplus() > 0; i-- {
		if p := sem.requested[i]; p.op == 0 {
			t.advanceOne(&p.Lease, now, out)
		}
	}
	for sem.surplus() < 0 {
		t.advanceOne(&t.newPermit(sem).Lease, now, out)
	}
	if sem.need() == 0 {
		t.refuseTries(l, protocol.Busy, -1, now, out)
	}
	t.peekSemaphore(sem, now, out)
	if t.idle(l) {
		t.dropLease(l)
	}
}

// permitHold returns the hold of a permit with the given fence; nil if there is none.
func (t *Table) permitHold(s *Session, key []byte, owner, fence uint64, now int64,
	out *Effects) *hold {
	sem := t.semaphores[string(key)]
	if sem == nil {
		return nil
	}
	h := sem.byFence[fence]
	if h == nil || h.s != s || h.owner != owner || h.forced {
		return nil
	}
	l := h.l
	t.expire(l, now, out)
	if sem.byFence[fence] == h {
		return h
	}
	t.advance(l, now, out) // expire has ended the hold
	return nil
}

var errDowngrade = errors.New("a permit of a semaphore cannot be downgraded")

// hintPermits handles a store's hint about a semaphore.
func (t *Table) hintPermits(s *StoreTraits, h Hint, now int64, out *Effects) {
	sem := t.semaphores[h.Key]
	if sem == nil {
		return
	}
	for _, l := range sem.claims() { // a copy, because advancing one permit may end others
		if l.st.StoreTraits == s && (h.Token == 0 || h.Token == l.token) {
			t.hint(l, h, now, out)
		}
	}
}

// inspectSemaphore answers re with the state of a semaphore.
func (t *Table) inspectSemaphore(re Request, ns *Namespace, key []byte, now int64, out *Effects) {
	sem := t.semaphore(key, ns)
	sem.peek(re)
	t.balance(sem, now, out)
}

// peekSemaphore answers the inspections of sem, or asks the store on their behalf.
func (t *Table) peekSemaphore(sem *semaphore, now int64, out *Effects) {
	if !sem.hasPeeks() || sem.op != 0 {
		return
	}
	m := Message{Kind: MsgInspected, Held: protocol.HeldHere, Mode: Permit,
		Waiters: sem.waits.n, Left: -1}
	for _, p := range sem.permits {
		if p.nHolds > 0 {
			m.Holders++
			m.Fence = max(m.Fence, p.newestFence())
			m.Left = max(m.Left, t.deadline(&p.Lease)-now)
		}
	}
	switch st := sem.st; {
	case m.Holders > 0:
		sem.answerPeeks(m, out)
	case st.downAt != 0:
		sem.answerPeeks(Message{Kind: MsgFailed, Code: protocol.Unavailable, Left: -1, Err: st.err},
			out)
	default:
		sem.mode = Permit
		t.ask(&sem.Lease, OpPeek, now, out)
	}
}
