package cache

import "github.com/locksidecar/locksidecar/protocol"

// Holds: which owner has a key on this host, with which fence, until when.
//
// A hold ends in one of these ways. All of them lead to dropHold, which removes the hold from every
// list and count; freeHold then makes its memory available.
//
//	end      the hold is released, or its session has ended
//	endLate  the owner gives the hold up after the stated validity: it counts as lost
//	lose     the hold is lost, and its owner is told, unless it was forced before
//	force    the hold is lost, but keeps the key closed until the stated validity is over
//
// The functions whose names begin with count keep the statistics: counted for a grant, uncounted
// for any end, countEnd for a release and countLost for a loss.

// find returns the owner's hold, nil when there is none.
func (l *Lease) find(s *Session, owner uint64) *hold {
	if r := l.optional; r != nil && r.byOwner != nil {
		return r.byOwner[ownerKey{s, owner}]
	}
	for h := range l.holds.all() {
		if h.s == s && h.owner == owner && !h.forced {
			return h
		}
	}
	return nil
}

// indexFrom is the number of holds from which a lease keeps an index of their owners.
const indexFrom = 12

// belongs adds h to the holds of its session and of its semaphore, and to their counts.
func (t *Table) belongs(h *hold) {
	l, s := h.l, h.s
	if p := l.permit(); p != nil {
		p.of.byFence[h.fence] = h
	}
	s.Holds.Add(1)
	s.User.addHolds(1)
	l.ns.Use.addHolds(1)
	s.index[t.cfg.Shard].holds.insert(h, nil)
}

func (t *Table) freeHold(h *hold) {
	*h = hold{}
	t.freeHolds.put(h)
}

func (t *Table) indexOwner(l *Lease, h *hold) {
	if l.nHolds <= indexFrom && (l.optional == nil || l.optional.byOwner == nil) {
		return
	}
	r := l.withOptional()
	if r.byOwner == nil {
		r.byOwner = make(map[ownerKey]*hold, 2*indexFrom)
		for o := range l.holds.all() {
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
	s.Acquires[protocol.OK]++
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
	if l := h.l; l.nHolds == 1 && l.state == stateHeld &&
		(why == CauseRelease || why == CauseSession) {
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
	l.holds.remove(h)
	l.nHolds--
	t.holds.remove(h)
	if p := l.permit(); p != nil {
		delete(p.of.byFence, h.fence)
	}
	l.held.fence = 0 // who joins readers from here on gets a new one: nobody is given a fence twice
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
	if x.survey == h {
		x.survey = x.holds.next(h)
	}
	x.holds.remove(h)
	t.mark(s)
	t.freeHold(h)
}

// lose removes h, and tells its owner unless the owner has been told.
func (t *Table) lose(h *hold, why protocol.Reason, now int64, out *Effects) {
	if !h.forced {
		t.tellLost(h, why, now, out)
	}
	t.dropHold(h)
}

// countLost counts the loss of h. A fixed hold that reaches its own end counts as released,
// because its owner requested that end.
func (t *Table) countLost(h *hold, why protocol.Reason, now int64, out *Effects) {
	if why == protocol.LostFixed {
		t.countEnd(h, CauseFixedEnd, now, out)
		return
	}
	t.uncounted(h, now).Lost[why]++
	out.notice(NoticeLost, h, now-h.since).Reason = why
}

func (t *Table) tellLost(h *hold, why protocol.Reason, now int64, out *Effects) {
	t.countLost(h, why, now, out)
	out.Messages = append(out.Messages, Message{Kind: MsgLost, Re: Request{Session: h.s},
		Key: h.l.key, Owner: h.owner, Fence: h.fence, Reason: why})
}

// expire ends what is past its time: the lease, or fixed holds of it.
func (t *Table) expire(l *Lease, now int64, out *Effects) {
	if l.state == stateHeld && now >= t.deadline(l) {
		if !l.forcedOnly() {
			l.st.stats.Expired++
		}
		for h := range l.holds.all() {
			t.lose(h, h.endReason(now, protocol.LostExpired), now, out)
		}
		t.beginRelease(l, now, out)
		return
	}
	if now < l.minEnd {
		return
	}
	end := Forever
	for h := range l.holds.all() {
		if h.end != 0 && now >= h.end {
			t.lose(h, h.endReason(now, protocol.LostFixed), now, out)
		} else if h.end != 0 {
			end = min(end, h.end)
		}
	}
	l.minEnd = end
}

// endReason returns why h is lost at now: because its own end has come, or else other. A hold
// with end == last is ended by the longest hold that is allowed.
func (h *hold) endReason(now int64, other protocol.Reason) protocol.Reason {
	switch {
	case h.end == 0 || now < h.end:
		return other
	case h.end == h.last:
		return protocol.LostTooLong
	}
	return protocol.LostFixed
}

func (t *Table) expireAll(st *storeRecord, now int64, out *Effects) {
	for _, l := range t.heldLeases(st) {
		t.expire(l, now, out)
		t.advance(l, now, out)
	}
}
