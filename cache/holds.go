package cache

import "github.com/locksidecar/locksidecar/protocol"

// This file begins and ends holds.
//
// A hold ends in one of these ways. All of them lead to dropHold, which removes the hold from every
// list and count; freeHold then makes its memory available.
//
//	end      the owner releases the hold, or the owner's session has ended
//	endLate  the owner gives the hold up after the stated validity: it counts as lost
//	lose     the hold is lost, and its owner is told, unless it was forced before
//	force    the hold is lost, but keeps the key closed until the stated validity is over
//
// detach, in detach.go, does not end the hold: it only takes the hold from its session.
//
// The functions whose names begin with count keep the statistics. countRelease and countLost call
// countEnd.

// find returns the owner's hold; nil if there is none. A hold that was ended by force does not
// count.
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

// indexFrom is the number of holds of a lease, or of waiters in a queue, above which there is an
// index of their owners.
const indexFrom = 12

// addToSession adds h to the holds of its session and of its semaphore, if it has one, and to the
// counts of the session, the user and the namespace.
func (t *Table) addToSession(h *hold) {
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

// indexOwner adds h to the index of owners. It makes the index when l has got many holds.
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
	// If h was forced, its owner may have a later hold, which stays in the index.
	if k := (ownerKey{h.s, h.owner}); r.byOwner[k] == h {
		delete(r.byOwner, k)
	}
	if l.nHolds == 0 {
		r.byOwner = nil
	}
}

// countGrant adds a grant to the statistics.
func (t *Table) countGrant(h *hold, w *waiter) {
	h.class = h.l.ns.Class
	s := t.statsOf(h.l.ns)
	s.Acquires[protocol.OK]++
	s.Wait.Observe(h.since - w.since)
	s.Holds++
	if h.fence == 0 {
		s.Degraded++
	}
}

// countEnd adds the end of h, of any kind, to the statistics. It returns them.
func (t *Table) countEnd(h *hold, now int64) *Stats {
	s := t.stats[h.class]
	s.Holds--
	s.Hold.Observe(now - h.since)
	return s
}

// end removes h. It counts h as released, unless force has counted it as lost before. The caller
// has to call advance afterwards.
func (t *Table) end(h *hold, why Cause, now int64, out *Effects) {
	if h.forced {
		t.dropHold(h)
		return
	}
	t.countRelease(h, why, now, out)
	if l := h.l; l.nHolds == 1 && l.state == stateHeld &&
		(why == CauseRelease || why == CauseSession) {
		t.rememberReleased(h, now)
	}
	t.dropHold(h)
}

func (t *Table) countRelease(h *hold, why Cause, now int64, out *Effects) {
	t.countEnd(h, now).Releases[why]++
	if out.Audit {
		out.notice(NoticeReleased, h, now-h.since).Cause = why
	}
}

// dropHold removes h from every list and count except the statistics.
func (t *Table) dropHold(h *hold) {
	l, s := h.l, h.s
	l.dropKeep(h)
	l.holds.remove(h)
	l.nHolds--
	t.holds.remove(h)
	if p := l.permit(); p != nil {
		delete(p.of.byFence, h.fence)
	}
	// A reader that joins later gets a new fence, because the owner of h may join again, and no
	// owner gets the same fence twice.
	l.held.fence = 0
	if l.nHolds == 0 {
		l.minEnd = Forever
		if r := l.optional; r != nil {
			l.held.keptFor, r.keepLatest = max(l.held.keptFor, r.keepLatest), 0
		}
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
	t.markShard(s)
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
		t.countRelease(h, CauseFixedEnd, now, out)
		return
	}
	t.countEnd(h, now).Lost[why]++
	out.notice(NoticeLost, h, now-h.since).Reason = why
}

// tellLost counts the loss of h and tells its owner.
func (t *Table) tellLost(h *hold, why protocol.Reason, now int64, out *Effects) {
	t.countLost(h, why, now, out)
	out.Messages = append(out.Messages, lostMessage(h, why))
}

func lostMessage(h *hold, why protocol.Reason) Message {
	return Message{Kind: MsgLost, Re: Request{Session: h.s}, Key: h.l.key, Owner: h.owner,
		Fence: h.fence, Reason: why}
}

// expire ends the lease with all its holds if its deadline has passed, or else the holds that have
// reached their own ends.
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
	case h.end == h.maxEnd:
		return protocol.LostTooLong
	}
	return protocol.LostFixed
}

// expireAll ends the leases at a store whose deadlines have passed.
func (t *Table) expireAll(st *storeRecord, now int64, out *Effects) {
	for _, l := range t.heldLeases(st) {
		t.expire(l, now, out)
		t.advance(l, now, out)
	}
}
