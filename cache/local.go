package cache

import (
	"slices"
	"strings"
)

// What happens on this host: holds, waiters, hand-overs.

// Acquire asks for a key. Times are nanoseconds; Wait is 0 to try, Forever to
// wait without bound. Key is copied if it is kept.
type Acquire struct {
	Re    Request
	Key   []byte
	Owner uint64
	Mode  Mode
	Wait  int64
	TTL   int64
	Fixed bool
	// Draining refuses everything but re-entry.
	Draining bool
}

// Acquire answers q at once, or queues it and answers it with a later event.
func (t *Table) Acquire(q *Acquire, now int64, out *Effects) {
	l := t.leases[string(q.Key)]
	if l != nil {
		t.expire(l, now, out)
		if h := l.find(q.Re.Session, q.Owner); h != nil {
			t.reenter(h, q, out)
			return
		}
		if q.Wait == 0 && t.refusesTry(l, q, now, out) {
			t.advance(l, now, out)
			return
		}
	}
	if q.Draining || q.Re.Session.Ended.Load() {
		out.fail(q.Re, CodeDraining, nil)
		if l != nil {
			t.advance(l, now, out)
		}
		return
	}
	if s := q.Re.Session; s.Holds.Load() >= t.cfg.MaxHolds || s.Waiters.Load() >= t.cfg.MaxWaiters {
		out.fail(q.Re, CodeLimit, nil)
		if l != nil {
			t.advance(l, now, out)
		}
		return
	}
	if l == nil {
		l = t.lease(q.Key)
	}
	t.enqueue(l, q, now)
	t.advance(l, now, out)
}

func (t *Table) reenter(h *hold, q *Acquire, out *Effects) {
	if h.mode == Shared && q.Mode == Exclusive {
		out.fail(q.Re, CodeUpgrade, nil)
		return
	}
	h.count++
	t.sayGranted(h, q.Re, true, out)
}

func (t *Table) sayGranted(h *hold, re Request, acquired bool, out *Effects) {
	out.Messages = append(out.Messages, Message{Kind: MsgGranted, Re: re, Fence: h.fence, Count: h.count,
		Until: t.valid(h), End: h.end, Granted: acquired, ShortTTL: h.l.ttl})
}

// refusesTry answers a try that is sure not to succeed: a try takes a key only
// when nobody holds it or stands before it.
func (t *Table) refusesTry(l *Lease, q *Acquire, now int64, out *Effects) bool {
	if r := l.rare; r != nil && r.fails > 0 && now < l.retryAt && l.state != stateHeld {
		out.fail(q.Re, CodeUnavailable, r.err)
		return true
	}
	before := l.waitHead != nil && (q.Mode == Exclusive || l.exclusiveWaits())
	if l.nHolds > 0 {
		before = before || q.Mode == Exclusive || l.heldMode == Exclusive || l.waitHead != nil || !t.mayHandOver(l, now)
	}
	if before || l.state == stateAsked && l.queued {
		out.busy(q.Re, -1)
		return true
	}
	return false
}

func (l *Lease) exclusiveWaits() bool {
	for w := l.waitHead; w != nil; w = w.next {
		if w.mode == Exclusive {
			return true
		}
	}
	return false
}

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

func (t *Table) enqueue(l *Lease, q *Acquire, now int64) {
	var w *waiter
	if n := len(t.freeWaits); n > 0 {
		w, t.freeWaits = t.freeWaits[n-1], t.freeWaits[:n-1]
	} else {
		w = new(waiter)
	}
	*w = waiter{l: l, req: q.Re, owner: q.Owner, ttl: q.TTL, mode: q.Mode, fixed: q.Fixed, permits: 1,
		try: q.Wait == 0, deadline: Forever}
	if !w.try && q.Wait < Forever-now {
		w.deadline = now + q.Wait
		t.timers.push(timer{at: w.deadline, w: w})
	}
	if w.prev = l.waitTail; w.prev != nil {
		w.prev.next = w
	} else {
		l.waitHead = w
	}
	l.waitTail = w
	l.nWaits++
	s := w.req.Session
	s.Waiters.Add(1)
	x := &s.index[t.cfg.Shard]
	if w.sNext = x.waits; w.sNext != nil {
		w.sNext.sPrev = w
	}
	x.waits = w
	t.mark(s)
}

// mark keeps the session's bit for this shard true.
func (t *Table) mark(s *Session) {
	x := &s.index[t.cfg.Shard]
	bit := uint64(1) << t.cfg.Shard
	if x.holds != nil || x.waits != nil {
		if s.Shards.Load()&bit == 0 {
			s.Shards.Or(bit)
		}
	} else {
		s.Shards.And(^bit)
	}
}

func (t *Table) dropWaiter(w *waiter) {
	l, s := w.l, w.req.Session
	if w.timerIdx != 0 {
		t.timers.remove(w.timerIdx)
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.waitHead = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.waitTail = w.prev
	}
	l.nWaits--
	s.Waiters.Add(-1)
	x := &s.index[t.cfg.Shard]
	if w.sPrev != nil {
		w.sPrev.sNext = w.sNext
	} else {
		x.waits = w.sNext
	}
	if w.sNext != nil {
		w.sNext.sPrev = w.sPrev
	}
	t.mark(s)
	*w = waiter{}
	if len(t.freeWaits) < freeMost {
		t.freeWaits = append(t.freeWaits, w)
	}
}

// mayHandOver says whether another local owner may come in while another host
// waits: so many, or for so long, since it was known to.
func (t *Table) mayHandOver(l *Lease, now int64) bool {
	if !l.wanted {
		return true
	}
	r := l.rarely()
	return r.hands < t.cfg.HandOvers && now-r.wantedAt < int64(t.cfg.HandOverTime)
}

func (t *Table) setWanted(l *Lease, now int64) {
	if l.wanted {
		return
	}
	l.wanted = true
	r := l.rarely()
	r.wantedAt, r.hands = now, 0
}

// verdict is whether a waiter may hold now.
type verdict uint8

const (
	never verdict = iota // not with this lease as it is, or not before a hold ends
	later                // once the lease has been renewed
	yes
)

// handOver lets waiters in, in their order, as far as the lease allows. fresh
// says that the lease has just come from the store. It answers tries that
// cannot be let in.
func (t *Table) handOver(l *Lease, now int64, fresh bool, out *Effects) {
	l.starved = false
	for w := l.waitHead; w != nil; w = l.waitHead {
		v := t.admits(l, w, now, fresh)
		if v == later {
			l.starved = true
			l.ttl = max(l.ttl, w.ttl)
			if t.cfg.Session && !l.rebase {
				l.retryAt = now + int64(t.cfg.SessionTTL)/30 // the session is being renewed
			}
			t.renew(l, now, out)
		}
		if v != yes {
			break
		}
		if !fresh && l.wanted {
			l.rarely().hands++
		}
		t.grant(l, w, now, fresh, out)
	}
	if l.nHolds == 0 {
		return
	}
	if l.releaser.Session != nil { // it stays with this host after all
		out.released(l.releaser, 0)
		l.releaser = Request{}
	}
	t.refuseTries(l, CodeBusy, -1, out)
}

func (t *Table) admits(l *Lease, w *waiter, now int64, fresh bool) verdict {
	if w.mode == Exclusive && (l.nHolds > 0 || l.mode != Exclusive || l.downgrade || l.op == OpDowngrade) {
		return never
	}
	if w.mode == Shared && l.nHolds > 0 && l.heldMode != Shared {
		return never
	}
	if !fresh && !t.mayHandOver(l, now) {
		return never
	}
	// A hand-over that cannot give a third of the TTL renews first.
	if t.cfg.Session {
		if t.session-now < min(w.ttl, int64(t.cfg.SessionTTL))/3 {
			return later
		}
	} else if !fresh && l.until-now < w.ttl/3 {
		return later
	}
	if l.hand >= handMax && !t.sharesFence(l, w.mode) {
		if t.cfg.Rebase {
			l.rebase = true
			return later
		}
		return never
	}
	return yes
}

// sharesFence says that a hold gets the fence of the present phase: readers who
// join readers.
func (t *Table) sharesFence(l *Lease, m Mode) bool {
	return m == Shared && l.nHolds > 0 && l.fence != 0
}

// nextFence begins a phase of holding: an exclusive holder's, or that of the
// readers who hold together.
func (t *Table) nextFence(l *Lease) {
	l.hand++
	if l.hand >= handFetch && t.cfg.Rebase {
		l.rebase = true
	}
	l.fence = l.base<<handBits | uint64(l.hand)
}

func (t *Table) grant(l *Lease, w *waiter, now int64, fresh bool, out *Effects) {
	if !t.sharesFence(l, w.mode) {
		t.nextFence(l)
	}
	var h *hold
	if n := len(t.freeHolds); n > 0 {
		h, t.freeHolds = t.freeHolds[n-1], t.freeHolds[:n-1]
	} else {
		h = new(hold)
	}
	*h = hold{l: l, s: w.req.Session, owner: w.owner, fence: l.fence, count: 1, permits: w.permits, mode: w.mode}
	if w.fixed {
		h.end = now + w.ttl
		if fresh && !t.cfg.Session && l.nHolds == 0 {
			h.end = min(h.end, l.until) // the lease was asked for with this very TTL
		}
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
	s := h.s
	s.Holds.Add(1)
	x := &s.index[t.cfg.Shard]
	if h.sNext = x.holds; h.sNext != nil {
		h.sNext.sPrev = h
	}
	x.holds = h
	re := w.req
	t.dropWaiter(w)
	t.sayGranted(h, re, true, out)
}

func (t *Table) indexOwner(l *Lease, h *hold) {
	if l.nHolds <= manyHolds {
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
	if l.nHolds == 0 {
		l.fence, l.minEnd = 0, Forever
	}
	if r := l.rare; r != nil && r.byOwner != nil {
		delete(r.byOwner, ownerKey{s, h.owner})
		if l.nHolds == 0 {
			r.byOwner = nil
		}
	}
	s.Holds.Add(-1)
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
	if l.state != stateHeld {
		return
	}
	if now >= t.deadline(l) {
		for l.holds != nil {
			why := LostExpired
			if l.holds.end != 0 && now >= l.holds.end {
				why = LostFixed
			}
			t.lose(l.holds, why, out)
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
			t.lose(h, LostFixed, out)
		} else if h.end != 0 {
			end = min(end, h.end)
		}
		h = next
	}
	l.minEnd = end
}

func (t *Table) expireAll(now int64, out *Effects) {
	for _, l := range t.heldLeases() {
		t.expire(l, now, out)
		t.advance(l, now, out)
	}
}

// heldLeases is every lease held, in the order of their keys, so that a run of
// the simulator can be repeated.
func (t *Table) heldLeases() []*Lease {
	ls := make([]*Lease, 0, t.held)
	for _, l := range t.leases {
		if l.state == stateHeld {
			ls = append(ls, l)
		}
	}
	slices.SortFunc(ls, func(a, b *Lease) int { return strings.Compare(a.key, b.key) })
	return ls
}
