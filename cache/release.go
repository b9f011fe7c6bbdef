package cache

import (
	"math"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Release is a request to lower the count of a hold by one, or to end the hold.
type Release struct {
	Re    Request
	Key   []byte
	Owner uint64
	Fence uint64
	All   bool  // end the hold, whatever its count
	Now   bool  // end it even if it has a keep
	Async bool  // answer before the store has confirmed
	Cause Cause // CauseRelease, or CauseGivenBack
}

// Release carries out q. It answers at once if the lease stays with this host or q is asynchronous,
// and otherwise when the store has confirmed the release.
func (t *Table) Release(q *Release, now int64, out *Effects) {
	l, h := t.holdOrFail(q.Re, q.Key, q.Owner, q.Fence, now, out)
	if h == nil { // holdOrFail has answered q
		t.releaseForced(q, now, out)
		return
	}
	if h.count > 1 && !q.All {
		h.count--
		out.released(q.Re, h.count)
		return
	}
	t.giveUp(l, h, q, now, out)
}

// giveUp ends or detaches h, a hold of l, for q.
func (t *Table) giveUp(l *Lease, h *hold, q *Release, now int64, out *Effects) {
	// A hold that a multi-acquire gives back does not count as late: its client never used it.
	if q.Cause != CauseRelease || !t.endLate(h, now, out) {
		if q.Now || !t.detach(h, now, out) {
			t.end(h, q.Cause, now, out)
		}
	}
	if l.nHolds == 0 {
		t.serveQueue(l, now, false, out) // before the answer, because the next holder has waited
	}
	if q.Async || l.nHolds > 0 || l.held.starved || l.state != stateHeld {
		out.released(q.Re, 0)
	} else {
		l.releaser = q.Re
	}
	t.advance(l, now, out)
}

// failReleaser answers the request that waits for the release of l, if there is one: the store has
// not confirmed the release.
func (t *Table) failReleaser(l *Lease, c protocol.Code, err error, out *Effects) {
	if l.releaser.Session != nil {
		out.fail(l.releaser, c, err)
		l.releaser = Request{}
	}
}

// confirmReleaser answers the request that waits for the release of l, because the lease stays with
// this host.
func (l *Lease) confirmReleaser(out *Effects) {
	if l.releaser.Session != nil {
		out.released(l.releaser, 0)
		l.releaser = Request{}
	}
}

// released answers a release. count is the number of entries that the owner still has.
func (e *Effects) released(re Request, count uint32) {
	e.Messages = append(e.Messages, Message{Kind: MsgReleased, Re: re, Count: count})
}

// holdOrFail returns the hold that a request names by key, owner and fence. If there is none, it
// answers the request with not-held.
func (t *Table) holdOrFail(re Request, key []byte, owner, fence uint64, now int64,
	out *Effects) (*Lease, *hold) {
	l := t.locks[string(key)].lease()
	if l != nil {
		t.expire(l, now, out)
		if h := l.find(re.Session, owner); h != nil && h.fence == fence {
			return l, h
		}
	}
	if h := t.permitHold(re.Session, key, owner, fence, now, out); h != nil {
		return h.l, h
	}
	out.fail(re, protocol.NotHeld, nil)
	if l != nil {
		t.advance(l, now, out) // expire may have ended it
	}
	return nil, nil
}

// Downgrade is a request to turn an exclusive hold into a shared one.
type Downgrade struct {
	Re    Request
	Key   []byte
	Owner uint64
	Fence uint64
}

// Downgrade carries out q and answers at once. The lease at the store is downgraded afterwards;
// until then it excludes more than necessary. A shared hold stays shared.
func (t *Table) Downgrade(q *Downgrade, now int64, out *Effects) {
	l, h := t.holdOrFail(q.Re, q.Key, q.Owner, q.Fence, now, out)
	if h == nil {
		return
	}
	if h.mode == Permit {
		out.fail(q.Re, protocol.Invalid, errDowngrade)
		return
	}
	if h.mode == Exclusive {
		h.mode, l.heldMode = Shared, Shared
		l.held.fence = 0 // readers that join get a larger fence
		l.held.downgrade = l.state == stateHeld && l.mode == Exclusive
	}
	l.extendDegraded(now, l.ttl)
	t.answerGranted(h, q.Re, out)
	t.advance(l, now, out)
}

// Cancel withdraws a waiting acquire of the same session. The acquire is answered first. The time
// that Cancel takes depends on the number of the session's waits, not on the number of waiters for
// the key.
func (t *Table) Cancel(re Request, key []byte, target uint64, now int64, out *Effects) {
	found := uint32(0)
	if t.withdraw(re.Session, now, out, func(w *waiter) bool {
		return w.req.ID == target && w.req.InternalReply == nil && w.l.key == string(key)
	}) {
		found = 1
	}
	out.Messages = append(out.Messages, Message{Kind: MsgCanceled, Re: re, Count: found})
}

// CancelInternal withdraws the waiting acquire whose InternalReply is reply. The acquire is
// answered.
func (t *Table) CancelInternal(s *Session, reply any, now int64, out *Effects) {
	t.withdraw(s, now, out, func(w *waiter) bool { return w.req.InternalReply == reply })
}

// withdraw ends the first wait of s for which meant returns true. It reports whether there is one.
func (t *Table) withdraw(s *Session, now int64, out *Effects, meant func(*waiter) bool) bool {
	for w := range s.index[t.cfg.Shard].waits.all() {
		if meant(w) {
			l := w.l
			t.dismiss(w, protocol.Canceled, -1, nil, now, out)
			t.advance(l, now, out)
			return true
		}
	}
	return false
}

// statedGrain is the rounding error of a stated validity, which is rounded down to milliseconds.
// For a client that disconnects or releases at the end of that validity, the hold is lost already,
// although the lease ends slightly later.
const statedGrain = int64(time.Millisecond)

// endLate is called when the owner of h gives h up. If the validity stated to the owner is over,
// endLate ends h as lost. It returns false, and does nothing, if h can still be released.
func (t *Table) endLate(h *hold, now int64, out *Effects) bool {
	over := now + statedGrain
	if h.forced || t.validUntil(h) > over {
		return false
	}
	t.countLost(h, h.endReason(over, protocol.LostExpired), now, out)
	t.dropHold(h)
	return true
}

// EndSession withdraws the waits of a session that has ended, and releases its holds: up to limit
// of both together. It returns the unused budget; more is true if waits or holds remain.
func (t *Table) EndSession(s *Session, limit int, now int64, out *Effects) (left int, more bool) {
	x := &s.index[t.cfg.Shard]
	limit = t.endWaits(s, limit, now, out)
	for ; limit > 0 && x.holds.first != nil; limit-- {
		h := x.holds.first
		l := h.l
		if !t.endLate(h, now, out) && !t.detach(h, now, out) {
			t.end(h, CauseSession, now, out)
		}
		t.advance(l, now, out)
	}
	return limit, x.waits.first != nil || x.holds.first != nil
}

// EndWaits withdraws the waits of a session, without an answer.
func (t *Table) EndWaits(s *Session, now int64, out *Effects) {
	t.endWaits(s, math.MaxInt, now, out)
}

// endWaits withdraws up to limit waits of s, and returns the unused budget.
func (t *Table) endWaits(s *Session, limit int, now int64, out *Effects) (left int) {
	x := &s.index[t.cfg.Shard]
	for ; limit > 0 && x.waits.first != nil; limit-- {
		w := x.waits.first
		l := w.l
		if w.req.claim() {
			t.statsOf(l.ns).Acquires[OutGone]++
		}
		w.hadToWait = w.hadToWait && w.req.choice() == nil
		t.dropWaiter(w)
		t.advance(l, now, out)
	}
	return limit
}

// RefuseWaits ends every wait with the code c.
func (t *Table) RefuseWaits(c protocol.Code, now int64, out *Effects) {
	for _, l := range t.sorted() {
		for w := range l.queue().all() {
			t.dismiss(w, c, -1, nil, now, out)
		}
		t.advance(l, now, out)
	}
}
