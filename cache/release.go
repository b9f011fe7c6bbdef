package cache

import (
	"math"
	"time"
)

// Release is a request to lower the count of a hold by one, or to end the hold.
type Release struct {
	Re    Request
	Key   []byte
	Owner uint64
	Fence uint64
	All   bool
	Async bool // answer before the store has confirmed
	Cause Cause
}

// Release carries out q. It answers at once if the lease stays with this host, and otherwise when the store has
// confirmed the release.
func (t *Table) Release(q *Release, now int64, out *Effects) {
	l, h := t.theHold(q.Re, q.Key, q.Owner, q.Fence, now, out)
	if h == nil {
		t.acknowledged(q, now, out)
		return
	}
	if h.count > 1 && !q.All {
		h.count--
		out.released(q.Re, h.count)
		return
	}
	if q.Cause != CauseRelease || !t.endLate(h, now, out) {
		t.end(h, q.Cause, now, out)
	}
	if l.nHolds == 0 {
		t.handoff(l, now, false, out) // before the answer: the next one waits longer
	}
	if q.Async || l.nHolds > 0 || l.starved || l.state != stateHeld {
		out.released(q.Re, 0)
	} else {
		l.releaser = q.Re
	}
	t.advance(l, now, out)
}

// stays answers the request that waits for the release of l, because the lease stays with this host.
func (l *Lease) stays(out *Effects) {
	if l.releaser.Session != nil {
		out.released(l.releaser, 0)
		l.releaser = Request{}
	}
}

func (e *Effects) released(re Request, count uint32) {
	e.Messages = append(e.Messages, Message{Kind: MsgReleased, Re: re, Count: count})
}

// theHold returns the hold that a request names by key, owner and fence. If there is none, it answers not-held.
func (t *Table) theHold(re Request, key []byte, owner, fence uint64, now int64, out *Effects) (*Lease, *hold) {
	l := t.leases[string(key)]
	if l != nil {
		t.expire(l, now, out)
		if h := l.find(re.Session, owner); h != nil && h.fence == fence {
			return l, h
		}
	}
	if h := t.permit(re.Session, key, owner, fence, now, out); h != nil {
		return h.l, h
	}
	out.fail(re, CodeNotHeld, nil)
	if l != nil {
		t.advance(l, now, out) // expire may have ended it
	}
	return nil, nil
}

// Renew is a client's request to renew a hold.
type Renew struct {
	Re    Request
	Key   []byte
	Owner uint64
	Fence uint64
	TTL   int64 // nanoseconds; 0 for the present TTL of the hold
}

// Renew carries out q. It answers with the new validity when the store has confirmed it.
func (t *Table) Renew(q *Renew, now int64, out *Effects) {
	l, h := t.theHold(q.Re, q.Key, q.Owner, q.Fence, now, out)
	if h == nil {
		return
	}
	ttl := q.TTL
	if ttl == 0 {
		ttl = l.ttl
	}
	if !l.st.renews() || l.state != stateHeld {
		l.restating(now, ttl)
		t.extendHold(h, ttl, now+ttl)
		t.sayGranted(h, q.Re, false, out)
		t.advance(l, now, out)
		return
	}
	if err := t.mayAsk(q.Re.Session); err != nil {
		out.fail(q.Re, CodeLimit, err)
		t.advance(l, now, out)
		return
	}
	r := l.withOptional()
	r.extends = append(r.extends, extend{q.Re, q.Owner, q.Fence, ttl})
	q.Re.Session.addAsks(1)
	l.ttl = max(l.ttl, ttl)
	t.renewForClients(l, now, out)
	t.advance(l, now, out)
}

// extendHold moves the end of a fixed hold. It never moves it back, because the earlier end was stated.
func (t *Table) extendHold(h *hold, ttl, end int64) {
	h.l.ttl = ttl
	if h.end == 0 {
		return
	}
	if h.last != 0 {
		end = min(end, h.last)
	}
	h.end = max(h.end, end)
}

// Downgrade is a request to turn an exclusive hold into a shared one.
type Downgrade struct {
	Re    Request
	Key   []byte
	Owner uint64
	Fence uint64
}

// Downgrade carries out q and answers at once. The lease at the store is downgraded afterwards; until then it
// excludes more than necessary. A shared hold stays shared.
func (t *Table) Downgrade(q *Downgrade, now int64, out *Effects) {
	l, h := t.theHold(q.Re, q.Key, q.Owner, q.Fence, now, out)
	if h == nil {
		return
	}
	if h.mode == Permit {
		out.fail(q.Re, CodeInvalid, errDowngrade)
		return
	}
	if h.mode == Exclusive {
		h.mode, l.heldMode = Shared, Shared
		l.fence = 0 // readers who join begin a phase: their fence is larger
		l.downgrade = l.state == stateHeld && l.mode == Exclusive
	}
	l.restating(now, l.ttl)
	t.sayGranted(h, q.Re, false, out)
	t.advance(l, now, out)
}

// Cancel withdraws a waiting acquire of the same session. The acquire is answered first. The time that Cancel
// takes depends on the number of the session's waits, not on the number of waiters for the key.
func (t *Table) Cancel(re Request, key []byte, target uint64, now int64, out *Effects) {
	found := uint32(0)
	if t.withdraw(re.Session, now, out, func(w *waiter) bool {
		return w.req.ID == target && w.req.InternalReply == nil && w.l.key == string(key)
	}) {
		found = 1
	}
	out.Messages = append(out.Messages, Message{Kind: MsgCanceled, Re: re, Count: found})
}

// CancelVia withdraws the waiting acquire whose InternalReply is reply.
func (t *Table) CancelVia(s *Session, reply any, now int64, out *Effects) {
	t.withdraw(s, now, out, func(w *waiter) bool { return w.req.InternalReply == reply })
}

// withdraw ends the first wait of s for which meant returns true. It reports whether there is one.
func (t *Table) withdraw(s *Session, now int64, out *Effects, meant func(*waiter) bool) bool {
	for w := s.index[t.cfg.Shard].waits; w != nil; w = w.sNext {
		if meant(w) {
			l := w.l
			t.dismiss(w, CodeCanceled, -1, nil, now, out)
			t.advance(l, now, out)
			return true
		}
	}
	return false
}

// statedGrain is the rounding error of a stated validity, which is rounded down to milliseconds. A client
// that disconnects or releases at the end of that validity has lost its hold, although the lease ends slightly later.
const statedGrain = int64(time.Millisecond)

// endLate ends h, which its owner gives up, as lost if the validity stated to the owner is over. It returns
// false, and does nothing, if h can still be released.
func (t *Table) endLate(h *hold, now int64, out *Effects) bool {
	over := now + statedGrain
	if h.forced || t.valid(h) > over {
		return false
	}
	t.countLost(h, h.endReason(over, LostExpired), now, out)
	t.dropHold(h)
	return true
}

// EndSession withdraws the waits of a session that has ended, and releases its holds: up to most of both
// together. It returns the unused budget; more is true if waits or holds remain.
func (t *Table) EndSession(s *Session, most int, now int64, out *Effects) (left int, more bool) {
	x := &s.index[t.cfg.Shard]
	most = t.endWaits(s, most, now, out)
	for ; most > 0 && x.holds != nil; most-- {
		h := x.holds
		l := h.l
		if !t.endLate(h, now, out) {
			t.end(h, CauseSession, now, out)
		}
		t.advance(l, now, out)
	}
	return most, x.waits != nil || x.holds != nil
}

// EndWaits withdraws the waits of a session, without an answer.
func (t *Table) EndWaits(s *Session, now int64, out *Effects) { t.endWaits(s, math.MaxInt, now, out) }

// endWaits withdraws up to most waits of s, and returns the unused budget.
func (t *Table) endWaits(s *Session, most int, now int64, out *Effects) (left int) {
	x := &s.index[t.cfg.Shard]
	for ; most > 0 && x.waits != nil; most-- {
		l := x.waits.l
		t.statsOf(l.ns).Acquires[OutGone]++
		t.dropWaiter(x.waits)
		t.advance(l, now, out)
	}
	return most
}

// RefuseWaits ends every wait with the code c.
func (t *Table) RefuseWaits(c Code, now int64, out *Effects) {
	for _, l := range t.sorted() {
		if l.dropped() {
			continue
		}
		for l.waitHead != nil {
			t.dismiss(l.waitHead, c, -1, nil, now, out)
		}
		t.advance(l, now, out)
	}
}

// Watermark is what a keepalive may state about a session's holds.
type Watermark struct {
	Until     int64 // the earliest deadline of their leases; Forever without holds
	TTL       int64 // the shortest of their TTLs; 0 without holds
	Heartbeat int64 // the shortest that their namespaces require; 0 for none
}

// Join merges o, the watermark of other holds, into w.
func (w *Watermark) Join(o Watermark) {
	w.Until = min(w.Until, o.Until)
	w.TTL, w.Heartbeat = least(w.TTL, o.TTL), least(w.Heartbeat, o.Heartbeat)
}

// least returns the smaller of a and b, ignoring a 0.
func least(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// lifetime returns how long l lasts if it is renewed now and never again.
func (t *Table) lifetime(l *Lease) int64 {
	if l.state == stateHeld {
		return l.st.Validity(l.ttl)
	}
	return l.ttl
}

// Survey visits up to most holds of s in this shard, and joins what may be stated of them at now into w. It
// resumes where it stopped, or starts anew if begin is true. It returns the unused budget; if that is 0, holds
// may remain. Holds that were granted after the survey began are not visited. A visited hold ends no sooner
// than was stated, whatever happens until the survey ends.
func (t *Table) Survey(s *Session, begin bool, w *Watermark, most int, now int64) (left int) {
	x := &s.index[t.cfg.Shard]
	if begin {
		x.survey = x.holds
	}
	for ; x.survey != nil && most > 0; most-- {
		h := x.survey
		x.survey = h.sNext
		if h.forced {
			continue
		}
		l, ttl := h.l, t.lifetime(h.l)
		l.restating(now, ttl)
		w.Join(Watermark{t.deadline(l), ttl, int64(l.ns.Heartbeat)})
	}
	return most
}

// Silence says what a session's silence means for its holds from now on.
type Silence struct {
	Again int64 // when LoseSilent has to be called next if the session stays silent; Forever for never
	Until int64 // no other hold of the session ends by silence before; Forever for never
}

// LoseSilent ends the overdue holds of a session: those whose namespaces require a heartbeat that has not
// arrived since heard. It spares a hold while a validity lasts that was stated before its namespace required
// the heartbeat. The owner of such a hold is told lead before that ends, so that the session's other holds
// can be stated to be valid longer by then; the key stays closed until it ends.
func (t *Table) LoseSilent(s *Session, heard, lead, now int64, out *Effects) Silence {
	is := Silence{Forever, Forever}
	var freed []*Lease // advanced at the end, because the advance of one may end other holds of s
	for h := s.index[t.cfg.Shard].holds; h != nil; {
		next, l := h.sNext, h.l
		due, spared := heard+int64(l.ns.Heartbeat), int64(0)
		if l.optional != nil {
			spared = l.optional.silentFrom
		}
		switch {
		case l.ns.Heartbeat == 0 || h.forced && now < spared:
		case now < max(due, spared-lead):
			is.Again, is.Until = min(is.Again, max(due, spared-lead)), min(is.Until, max(due, spared))
		case now < spared:
			t.tellLost(h, LostSilent, now, out)
			t.force(h)
			h.end = min(h.end, spared)
			l.minEnd = min(l.minEnd, h.end)
			freed = append(freed, l)
		default:
			t.lose(h, LostSilent, now, out)
			freed = append(freed, l)
		}
		h = next
	}
	t.advanceEach(freed, now, out)
	return is
}
