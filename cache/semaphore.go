package cache

import (
	"errors"
	"iter"
	"slices"
)

// Semaphores: keys with several permits.

// semaphore has the permits of one key on this host. The semaphore's own lease, which has the queue, is never
// requested. Each permit is a separate lease, which serves the first waiter in that queue. So no waiter waits
// for one permit while another is available.
type semaphore struct {
	limit   uint32           // number of permits on all hosts, as the latest acquire said
	permits []*Lease         // all of this host
	asks    []*Lease         // permits that are requested, and neither held nor to be released, oldest first
	held    int              // permits in stateHeld or stateClosed
	holds   map[uint64]*hold // by fence
}

// need returns how many permits have to be requested: one for each waiter, but no more than are left beside
// those held.
func (sem *semaphore) need(l *Lease) int {
	return min(int(l.nWaits), max(0, int(sem.limit)-sem.held))
}

// surplus returns how many permits are requested beyond need.
func (sem *semaphore) surplus(l *Lease) int { return len(sem.asks) - sem.need(l) }

// over reports whether this host holds more permits than exist, because the limit has been lowered.
func (sem *semaphore) over() bool { return sem.held > int(sem.limit) }

// moves updates the counts for p, which moves to state to.
func (sem *semaphore) moves(p *Lease, to state) {
	asks := func(s state) bool { return s == stateNone || s == stateAsked }
	switch was, is := asks(p.state), asks(to); {
	case was && !is:
		sem.dropAsk(p)
	case is && !was:
		sem.asks = append(sem.asks, p)
	}
	taken := func(s state) bool { return s == stateHeld || s == stateClosed }
	if taken(p.state) {
		sem.held--
	}
	if taken(to) {
		sem.held++
	}
}

func (sem *semaphore) dropAsk(p *Lease) {
	if i := slices.Index(sem.asks, p); i >= 0 {
		sem.asks = slices.Delete(sem.asks, i, i+1)
	}
}

// drop forgets p, which is not held.
func (sem *semaphore) drop(p *Lease) {
	sem.dropAsk(p)
	last := len(sem.permits) - 1
	sem.permits[p.place] = sem.permits[last]
	sem.permits[p.place].place = p.place
	sem.permits[last] = nil
	sem.permits = sem.permits[:last]
}

// queue returns the lease whose waiters l serves: l itself, or its semaphore.
func (l *Lease) queue() *Lease {
	if l.head != nil {
		return l.head
	}
	return l
}

// kind tells a lock, a semaphore and a permit apart.
func (l *Lease) kind() int {
	switch {
	case l.head != nil:
		return 2
	case l.sem != nil:
		return 1
	}
	return 0
}

// heldUpstream reports whether l, or a permit of l, is held at the store.
func (l *Lease) heldUpstream() bool {
	return l.state == stateHeld || l.sem != nil && l.sem.held > 0
}

// worst returns a requested permit of a semaphore if the requests for all its permits fail; otherwise nil.
func (l *Lease) worst() *Lease {
	if l.sem == nil || len(l.sem.asks) == 0 {
		return nil
	}
	for _, p := range l.sem.asks {
		if p.optional == nil || p.optional.failSince == 0 {
			return nil
		}
	}
	return l.sem.asks[0]
}

// named yields the leases of a key: the lock, and the permits of the semaphore.
func (t *Table) named(key string) iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		if l := t.leases[key]; l != nil && !yield(l) {
			return
		}
		if l := t.sems[key]; l != nil {
			for _, p := range l.sem.permits {
				if !yield(p) {
					return
				}
			}
		}
	}
}

func (t *Table) semaphore(key []byte, ns *Namespace) *Lease {
	if l := t.withPolicy(t.sems[string(key)], ns); l != nil {
		return l
	}
	l := t.newLease(string(key), ns)
	l.sem = &semaphore{holds: make(map[uint64]*hold)}
	t.sems[l.key] = l
	return l
}

func (t *Table) newPermit(head *Lease) *Lease {
	p := t.newLease(head.key, head.ns)
	p.head, p.place = head, int32(len(head.sem.permits))
	head.sem.permits = append(head.sem.permits, p)
	head.sem.asks = append(head.sem.asks, p)
	return p
}

// acquirePermit answers q at once, or queues it. There is no re-entry: each acquire
// takes a permit.
func (t *Table) acquirePermit(q *Acquire, now int64, out *Effects) {
	if q.Draining || q.Re.Session.Ended.Load() {
		t.refuse(q, CodeDraining, nil, out)
		return
	}
	l := t.withPolicy(t.sems[string(q.Key)], q.NS)
	if code, err := t.refuses(l, q); code != CodeOK {
		t.refuse(q, code, err, out)
		return
	}
	l = t.semaphore(q.Key, q.NS)
	l.sem.limit = q.Limit
	if q.Wait == 0 && t.refusesPermit(l, now, out, q) {
		t.balance(l, now, out)
		return
	}
	t.enqueue(l, q, now)
	t.balance(l, now, out)
}

// refusesPermit answers a try that is sure not to succeed.
func (t *Table) refusesPermit(l *Lease, now int64, out *Effects, q *Acquire) bool {
	sem := l.sem
	if p := l.worst(); p != nil && now < p.retryAt {
		t.refuse(q, CodeUnavailable, p.optional.err, out)
		return true
	}
	queued := slices.ContainsFunc(sem.asks, func(p *Lease) bool { return p.queued })
	if queued || int(l.nWaits) >= int(sem.limit)-sem.held {
		t.refuse(q, CodeBusy, nil, out)
		return true
	}
	return false
}

// balance requests a permit for each waiter that could get one, and gives up the others. It forgets a semaphore
// that has nothing left.
func (t *Table) balance(l *Lease, now int64, out *Effects) {
	sem := l.sem
	t.finishMove(l, out)
	for i := len(sem.asks) - 1; i >= 0 && sem.surplus(l) > 0; i-- {
		if p := sem.asks[i]; p.op == 0 {
			t.advanceOne(p, now, out)
		}
	}
	for sem.surplus(l) < 0 {
		t.advanceOne(t.newPermit(l), now, out)
	}
	if sem.need(l) == 0 {
		t.refuseTries(l, CodeBusy, -1, now, out)
	}
	t.peekSemaphore(l, now, out)
	if len(sem.permits) == 0 && l.nWaits == 0 && l.op == 0 && (l.optional == nil || len(l.optional.peeks) == 0) {
		t.dropLease(l)
	}
}

// permit returns the hold of a permit with the given fence; nil if there is none.
func (t *Table) permit(s *Session, key []byte, owner, fence uint64, now int64, out *Effects) *hold {
	l := t.sems[string(key)]
	if l == nil {
		return nil
	}
	h := l.sem.holds[fence]
	if h == nil || h.s != s || h.owner != owner || h.forced {
		return nil
	}
	p := h.l
	t.expire(p, now, out)
	if l.sem.holds[fence] == h {
		return h
	}
	t.advance(p, now, out) // expire has ended it
	return nil
}

var errDowngrade = errors.New("a permit of a semaphore cannot be downgraded")

// hintPermits takes in a store's hint about a semaphore.
func (t *Table) hintPermits(s *Store, h Hint, now int64, out *Effects) {
	l := t.sems[h.Key]
	if l == nil {
		return
	}
	for _, p := range slices.Clone(l.sem.permits) { // advancing one may end others
		if p.head == l && p.st.Store == s && (h.Token == 0 || h.Token == p.token) {
			t.hint(p, h, now, out)
		}
	}
}

// inspectSemaphore answers re with the state of a semaphore.
func (t *Table) inspectSemaphore(re Request, ns *Namespace, key []byte, now int64, out *Effects) {
	l := t.semaphore(key, ns)
	l.peek(re)
	t.balance(l, now, out)
}

// peekSemaphore answers the inspections of l, or asks the store on their behalf.
func (t *Table) peekSemaphore(l *Lease, now int64, out *Effects) {
	r := l.optional
	if r == nil || len(r.peeks) == 0 || l.op != 0 {
		return
	}
	m := Message{Kind: MsgInspected, Held: 1, Mode: Permit, Waiters: l.nWaits, Left: -1}
	for _, p := range l.sem.permits {
		if p.nHolds > 0 {
			m.Holders++
			m.Fence = max(m.Fence, p.newestFence())
			m.Left = max(m.Left, t.deadline(p)-now)
		}
	}
	switch st := l.st; {
	case m.Holders > 0:
		l.answerPeeks(m, out)
	case st.downAt != 0:
		l.answerPeeks(Message{Kind: MsgFailed, Code: CodeUnavailable, Left: -1, Err: st.err}, out)
	default:
		l.mode = Permit
		t.ask(l, OpPeek, now, out)
	}
}
