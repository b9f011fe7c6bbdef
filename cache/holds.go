package cache

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// Holds: which owner has a key on this host, with which fence, until when.

// find returns the owner's hold, nil when there is none.
func (l *Lease) find(s *Session, owner uint64) *hold {
	if r := l.optional; r != nil && r.byOwner != nil {
		return r.byOwner[ownerKey{s, owner}]
	}
	for h := l.holds; h != nil; h = h.next {
		if h.s == s && h.owner == owner && !h.forced {
			return h
		}
	}
	return nil
}

// indexHolds is the number of holds from which a lease keeps an index of their owners.
const indexHolds = 12

// sharesFence reports whether a new hold gets the fence of the present phase. Readers that join readers do.
func (t *Table) sharesFence(l *Lease, m Mode) bool {
	return m == Shared && l.nHolds > 0 && l.fence != 0
}

// nextFence begins a phase of holding: an exclusive holder's, or that of the
// readers who hold together.
func (t *Table) nextFence(l *Lease) {
	l.handoff++
	if l.handoff >= handoffRebase && l.st.Rebase {
		l.rebase = true
	}
	l.fence = l.base<<handoffBits | uint64(l.handoff)
	if l.head != nil {
		l.fence |= permitHandoffs
	}
}

func (t *Table) grant(l *Lease, w *waiter, now int64, fresh bool, out *Effects) {
	if l.nHolds == 0 {
		t.used(l, now)
		t.dropLast(l)
	}
	if l.state == stateHeld && !t.sharesFence(l, w.mode) {
		t.nextFence(l)
		for l.head != nil && l.head.sem.holds[l.fence] != nil { // of another store, which had the same base
			t.nextFence(l)
		}
	}
	h := t.newHold()
	*h = hold{l: l, s: w.req.Session, owner: w.owner, fence: l.fence, count: 1, mode: w.mode, since: now}
	t.counted(h, w)
	if out.Audit {
		out.notice(NoticeAcquired, h, now-w.since)
	}
	if w.fixed {
		h.end = now + w.ttl
		if fresh && l.st.renews() && l.nHolds == 0 {
			h.end = min(h.end, l.until) // the lease was asked for with this very TTL
		}
	}
	if most := int64(l.ns.MaxHold); most > 0 {
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
	t.holds.add(h)
	t.indexOwner(l, h)
	t.belongs(h)
	re := w.req
	w.contended = w.contended && now > w.since
	t.dropWaiter(w)
	m := t.grantOf(h, re, true)
	m.Handoff = !fresh && l.state == stateHeld
	out.Messages = append(out.Messages, m)
	t.reenterWaits(h, now, out)
}

// belongs adds h to the holds of its session and of its semaphore, and to their counts.
func (t *Table) belongs(h *hold) {
	l, s := h.l, h.s
	if l.head != nil {
		l.head.sem.holds[h.fence] = h
	}
	s.Holds.Add(1)
	s.User.addHolds(1)
	l.ns.Use.addHolds(1)
	x := &s.index[t.cfg.Shard]
	if h.sNext = x.holds; h.sNext != nil {
		h.sNext.sPrev = h
	}
	x.holds = h
}

func (t *Table) newHold() *hold {
	n := len(t.freeHolds)
	if n == 0 {
		return new(hold)
	}
	h := t.freeHolds[n-1]
	t.freeHolds = t.freeHolds[:n-1]
	return h
}

func (t *Table) freeHold(h *hold) {
	*h = hold{}
	if len(t.freeHolds) < maxFree {
		t.freeHolds = append(t.freeHolds, h)
	}
}

func (t *Table) indexOwner(l *Lease, h *hold) {
	if l.nHolds <= indexHolds && (l.optional == nil || l.optional.byOwner == nil) {
		return
	}
	r := l.withOptional()
	if r.byOwner == nil {
		r.byOwner = make(map[ownerKey]*hold, 2*indexHolds)
		for o := l.holds; o != nil; o = o.next {
			if !o.forced {
				r.byOwner[ownerKey{o.s, o.owner}] = o
			}
		}
		return
	}
	r.byOwner[ownerKey{h.s, h.owner}] = h
}

func (l *Lease) unindexOwner(h *hold) {
	r := l.optional
	if r == nil || r.byOwner == nil {
		return
	}
	if k := (ownerKey{h.s, h.owner}); r.byOwner[k] == h { // else of one that has come after it
		delete(r.byOwner, k)
	}
	if l.nHolds == 0 {
		r.byOwner = nil
	}
}

// counted adds a grant to the statistics.
func (t *Table) counted(h *hold, w *waiter) {
	h.class = h.l.ns.Class
	s := t.statsOf(h.l.ns)
	s.Acquires[CodeOK]++
	s.Wait.Observe(h.since - w.since)
	s.Holds++
	if h.fence == 0 {
		s.Degraded++
	}
}

// uncounted adds the end of h to the statistics.
func (t *Table) uncounted(h *hold, now int64) *Stats {
	s := t.stats[h.class]
	s.Holds--
	s.Hold.Observe(now - h.since)
	return s
}

// end removes h, which is not lost, except by force. The caller has to call advance afterwards.
func (t *Table) end(h *hold, why Cause, now int64, out *Effects) {
	if h.forced {
		t.dropHold(h)
		return
	}
	t.countEnd(h, why, now, out)
	if l := h.l; l.nHolds == 1 && l.state == stateHeld && (why == CauseRelease || why == CauseSession) {
		t.keepLast(h, now)
	}
	t.dropHold(h)
}

func (t *Table) countEnd(h *hold, why Cause, now int64, out *Effects) {
	t.uncounted(h, now).Releases[why]++
	if out.Audit {
		out.notice(NoticeReleased, h, now-h.since).Cause = why
	}
}

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
	t.holds.remove(h)
	if l.head != nil {
		delete(l.head.sem.holds, h.fence)
	}
	l.fence = 0 // who joins readers from here on gets a new one: nobody is given a fence twice
	if l.nHolds == 0 {
		l.minEnd = Forever
	}
	l.unindexOwner(h)
	if h.forced {
		t.forced--
	}
	s.Holds.Add(-1)
	s.User.addHolds(-1)
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
	if x.survey == h {
		x.survey = h.sNext
	}
	t.mark(s)
	t.freeHold(h)
}

// lose removes h, and tells its owner unless the owner has been told.
func (t *Table) lose(h *hold, why Reason, now int64, out *Effects) {
	if !h.forced {
		t.tellLost(h, why, now, out)
	}
	t.dropHold(h)
}

// countLost counts the loss of h. A fixed hold that reaches its own end counts as released, because its
// owner requested that end.
func (t *Table) countLost(h *hold, why Reason, now int64, out *Effects) {
	if why == LostFixed {
		t.countEnd(h, CauseFixedEnd, now, out)
		return
	}
	t.uncounted(h, now).Lost[why]++
	out.notice(NoticeLost, h, now-h.since).Reason = why
}

func (t *Table) tellLost(h *hold, why Reason, now int64, out *Effects) {
	t.countLost(h, why, now, out)
	out.Messages = append(out.Messages, Message{Kind: MsgLost, Re: Request{Session: h.s}, Key: h.l.key,
		Owner: h.owner, Fence: h.fence, Reason: why})
}

// expire ends what is past its time: the lease, or fixed holds of it.
func (t *Table) expire(l *Lease, now int64, out *Effects) {
	if l.state == stateHeld && now >= t.deadline(l) {
		if !l.forcedOnly() {
			l.st.stats.Expired++
		}
		for l.holds != nil {
			t.lose(l.holds, l.holds.endReason(now, LostExpired), now, out)
		}
		t.beginRelease(l, now, out)
		return
	}
	if now < l.minEnd {
		return
	}
	end := Forever
	for h := l.holds; h != nil; {
		next := h.next
		if h.end != 0 && now >= h.end {
			t.lose(h, h.endReason(now, LostFixed), now, out)
		} else if h.end != 0 {
			end = min(end, h.end)
		}
		h = next
	}
	l.minEnd = end
}

// endReason returns why h is lost at now: because its own end has come, or else other. A hold with end == last
// is ended by the longest hold that is allowed.
func (h *hold) endReason(now int64, other Reason) Reason {
	switch {
	case h.end == 0 || now < h.end:
		return other
	case h.end == h.last:
		return LostTooLong
	}
	return LostFixed
}

func (t *Table) expireAll(st *storeState, now int64, out *Effects) {
	for _, l := range t.heldLeases(st) {
		if l.dropped() {
			continue
		}
		t.expire(l, now, out)
		t.advance(l, now, out)
	}
}

// heldLeases returns every lease that is held at a store, in order.
func (t *Table) heldLeases(st *storeState) []*Lease {
	ls := make([]*Lease, 0, st.held)
	for l := range t.all() {
		if l.state == stateHeld && l.st == st {
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
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.kind(), b.kind()),
			cmp.Compare(a.token, b.token), cmp.Compare(a.place, b.place))
	})
}

// sorted returns every lease in order. Advancing one permit of a semaphore may drop others of the list.
func (t *Table) sorted() []*Lease {
	ls := make([]*Lease, 0, t.Len())
	for l := range t.all() {
		ls = append(ls, l)
	}
	inOrder(ls)
	return ls
}
