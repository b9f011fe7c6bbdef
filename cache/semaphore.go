package cache

import (
	"errors"
	"iter"
	"slices"
)

// Semaphores: several permits of one key.

// semaphore is the permits of one key on this host. Its own lease is never asked
// for: it has the queue. Each permit is a lease of its own, which serves whoever is
// first in that queue, so that nobody waits for one permit while another comes free.
type semaphore struct {
	limit   uint32           // how many permits there are on all hosts, as said last
	permits []*Lease         // all of this host
	asks    []*Lease         // those that are neither held nor owed, the oldest first
	held    int              // those in stateHeld or stateClosed
	holds   map[uint64]*hold // by fence
}

// need is how many permits have to be asked for: one a waiter, and no more than can
// be got beside those held.
func (sem *semaphore) need(l *Lease) int {
	return min(int(l.nWaits), max(0, int(sem.limit)-sem.held))
}

// surplus is how many are asked for beyond that.
func (sem *semaphore) surplus(l *Lease) int { return len(sem.asks) - sem.need(l) }

// over says that this host holds more than there are: the limit has been lowered.
func (sem *semaphore) over() bool { return sem.held > int(sem.limit) }

// moves follows p, which moves to state to.
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

// queue is the lease whose waiters l serves: itself, or its semaphore.
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

// heldUpstream says that l is held upstream, or a permit of it.
func (l *Lease) heldUpstream() bool {
	return l.state == stateHeld || l.sem != nil && l.sem.held > 0
}

// worst is, of a semaphore that asks for permits and fails at all of them, one
// of those; nil otherwise.
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

// named yields what a key names: the lock, and the permits of the semaphore.
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

// balance asks for as many permits as there are waiters who could have one, gives up
// the rest, and forgets a semaphore of which nothing is left.
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

// permit finds the hold of a permit by its fence; nil when there is none.
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

// hintPermits is a store's word about a semaphore.
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

// inspectSemaphore answers what is known of a semaphore.
func (t *Table) inspectSemaphore(re Request, ns *Namespace, key []byte, now int64, out *Effects) {
	l := t.semaphore(key, ns)
	l.peek(re)
	t.balance(l, now, out)
}

// peekSemaphore answers who asked about l, or asks the store for them.
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
