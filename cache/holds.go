package cache

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// Holds: who has a key here, under which fence, until when.

// find returns the owner's hold, nil when there is none.
func (l *Lease) find(s *Session, owner uint64) *hold {
	if r := l.rare; r != nil && r.byOwner != nil {
		return r.byOwner[ownerKey{s, owner}]
	}
	for h := l.holds; h != nil; h = h.next {
		if h.s == s && h.owner == owner {
			return h
		}
	}
	return nil
}

// manyHolds is from how many holds on a lease keeps an index of owners.
const manyHolds = 12

// sharesFence says that a hold gets the fence of the present phase: readers who
// join readers.
func (t *Table) sharesFence(l *Lease, m Mode) bool {
	return m == Shared && l.nHolds > 0 && l.fence != 0
}

// nextFence begins a phase of holding: an exclusive holder's, or that of the
// readers who hold together.
func (t *Table) nextFence(l *Lease) {
	l.hand++
	if l.hand >= handFetch && t.of(l).Rebase {
		l.rebase = true
	}
	l.fence = l.base<<handBits | uint64(l.hand)
	if l.head != nil {
		l.fence |= handPermit
	}
}

func (t *Table) grant(l *Lease, w *waiter, now int64, fresh bool, out *Effects) {
	if l.nHolds == 0 || l.ns.Use == w.ns.Use {
		l.ns = w.ns // of the same store; the newest policy
	}
	if l.nHolds == 0 {
		t.used(l, now)
	}
	if l.state == stateHeld && !t.sharesFence(l, w.mode) {
		t.nextFence(l)
	}
	var h *hold
	if n := len(t.freeHolds); n > 0 {
		h, t.freeHolds = t.freeHolds[n-1], t.freeHolds[:n-1]
	} else {
		h = new(hold)
	}
	*h = hold{l: l, s: w.req.Session, owner: w.owner, fence: l.fence, count: 1, mode: w.mode}
	if w.fixed {
		h.end = now + w.ttl
		if fresh && t.of(l).renews() && l.nHolds == 0 {
			h.end = min(h.end, l.until) // the lease was asked for with this very TTL
		}
	}
	if most := int64(w.ns.MaxHold); most > 0 {
		h.last = now + most
		if h.end == 0 || h.end > h.last {
			h.end = h.last
		}
	}
	if h.end != 0 {
		l.minEnd = min(l.minEnd, h.end)
	}
	if l.nHolds == 0 {
		l.ttl = w.ttl
	} else {
		l.ttl = max(l.ttl, w.ttl)
	}
	l.heldMode = w.mode
	if h.next = l.holds; h.next != nil {
		h.next.prev = h
	}
	l.holds = h
	l.nHolds++
	t.indexOwner(l, h)
	if l.head != nil {
		l.head.sem.holds[h.fence] = h
	}
	s := h.s
	s.Holds.Add(1)
	l.ns.Use.addHolds(1)
	x := &s.index[t.cfg.Shard]
	if h.sNext = x.holds; h.sNext != nil {
		h.sNext.sPrev = h
	}
	x.holds = h
	re := w.req
	t.dropWaiter(w)
	t.sayGranted(h, re, true, out)
	t.reenterWaits(h, out)
}

func (t *Table) indexOwner(l *Lease, h *hold) {
	if l.nHolds <= manyHolds && (l.rare == nil || l.rare.byOwner == nil) {
		return
	}
	r := l.rarely()
	if r.byOwner == nil {
		r.byOwner = make(map[ownerKey]*hold, 2*manyHolds)
		for o := l.holds; o != nil; o = o.next {
			r.byOwner[ownerKey{o.s, o.owner}] = o
		}
		return
	}
	r.byOwner[ownerKey{h.s, h.owner}] = h
}

// dropHold takes h away; what follows from it is advance's.
func (t *Table) dropHold(h *hold) {
	l, s := h.l, h.s
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		l.holds = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	l.nHolds--
	if l.head != nil {
		delete(l.head.sem.holds, h.fence)
	}
	l.fence = 0 // who joins readers from here on gets a new one: nobody is given a fence twice
	if l.nHolds == 0 {
		l.minEnd = Forever
	}
	if r := l.rare; r != nil && r.byOwner != nil {
		delete(r.byOwner, ownerKey{s, h.owner})
		if l.nHolds == 0 {
			r.byOwner = nil
		}
	}
	s.Holds.Add(-1)
	l.ns.Use.addHolds(-1)
	x := &s.index[t.cfg.Shard]
	if h.sPrev != nil {
		h.sPrev.sNext = h.sNext
	} else {
		x.holds = h.sNext
	}
	if h.sNext != nil {
		h.sNext.sPrev = h.sPrev
	}
	t.mark(s)
	*h = hold{}
	if len(t.freeHolds) < freeMost {
		t.freeHolds = append(t.freeHolds, h)
	}
}

// lose tells h's owner that it is gone.
func (t *Table) lose(h *hold, why Reason, out *Effects) {
	out.Messages = append(out.Messages, Message{Kind: MsgLost, Re: Request{Session: h.s}, Key: h.l.key,
		Owner: h.owner, Fence: h.fence, Reason: why})
	t.dropHold(h)
}

func (t *Table) loseAll(l *Lease, why Reason, out *Effects) {
	for l.holds != nil {
		t.lose(l.holds, why, out)
	}
}

// expire ends what is past its time: the lease, or fixed holds of it.
func (t *Table) expire(l *Lease, now int64, out *Effects) {
	if l.state == stateHeld && now >= t.deadline(l) {
		for l.holds != nil {
			t.lose(l.holds, l.holds.endReason(now, LostExpired), out)
		}
		t.owe(l, now, out)
		return
	}
	if now < l.minEnd {
		return
	}
	end := Forever
	for h := l.holds; h != nil; {
		next := h.next
		if h.end != 0 && now >= h.end {
			t.lose(h, h.endReason(now, LostFixed), out)
		} else if h.end != 0 {
			end = min(end, h.end)
		}
		h = next
	}
	l.minEnd = end
}

// endReason is why h is lost at now: its own end, if that has come, or other.
func (h *hold) endReason(now int64, other Reason) Reason {
	switch {
	case h.last != 0 && now >= h.last:
		return LostTooLong
	case h.end != 0 && now >= h.end:
		return LostFixed
	}
	return other
}

func (t *Table) expireAll(st *storeState, now int64, out *Effects) {
	for _, l := range t.heldLeases(st) {
		if l.ns == nil { // gone with one before it
			continue
		}
		t.expire(l, now, out)
		t.advance(l, now, out)
	}
}

// heldLeases is every lease held at a store, in order.
func (t *Table) heldLeases(st *storeState) []*Lease {
	ls := make([]*Lease, 0, st.held)
	for l := range t.all() {
		if l.state == stateHeld && t.of(l) == st {
			ls = append(ls, l)
		}
	}
	inOrder(ls)
	return ls
}

// all yields every lease: of locks, of semaphores, and of their permits.
func (t *Table) all() iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		for _, l := range t.leases {
			if !yield(l) {
				return
			}
		}
		for _, l := range t.sems {
			if !yield(l) {
				return
			}
			for _, p := range l.sem.permits {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// inOrder sorts leases so that a run of the simulator can be repeated.
func inOrder(ls []*Lease) {
	slices.SortFunc(ls, func(a, b *Lease) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.kind(), b.kind()), cmp.Compare(a.token, b.token))
	})
}

// sorted is every lease in order. Advancing one of a semaphore may end others: those
// have no namespace any more.
func (t *Table) sorted() []*Lease {
	ls := make([]*Lease, 0, t.Len())
	for l := range t.all() {
		ls = append(ls, l)
	}
	inOrder(ls)
	return ls
}
