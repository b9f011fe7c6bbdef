package cache

import "github.com/locksidecar/locksidecar/protocol"

// Losses that show at the release. A store that was flushed, say, does not know a lease any more.
// If that shows only when its last hold has been released, the owner may have worked without the
// lock. So the hold counts as lost then. It counts as released, too, because that was counted
// before.

// releasedHold is the last hold of a lease, which was released while the store may yet not know the
// lease.
type releasedHold struct {
	s             *Session
	owner, fence  uint64
	since         int64 // when the hold was granted
	releasedAt    int64
	leaseDeadline int64 // until then, the store should know the lease
	class         uint16
	mode          Mode
}

// keepLast keeps h, the last hold of its lease, which was released at now, until the store has
// confirmed the lease or its end.
func (t *Table) keepLast(h *hold, now int64) {
	l := h.l
	t.dropLast(l)
	l.last = t.freeReleased.get()
	*l.last = releasedHold{s: h.s, owner: h.owner, fence: h.fence, since: h.since, releasedAt: now,
		leaseDeadline: t.deadline(l), class: h.class, mode: h.mode}
}

// dropLast forgets the hold that keepLast has kept, if there is one.
func (t *Table) dropLast(l *Lease) {
	if l.last != nil {
		*l.last = releasedHold{}
		t.freeReleased.put(l.last)
		l.last = nil
	}
}

// foundGone counts the hold that keepLast has kept as lost: the store does not know the lease,
// though the lease should not have ended by now.
func (t *Table) foundGone(l *Lease, now int64, out *Effects) {
	h := l.last
	if h == nil || now >= h.leaseDeadline {
		return
	}
	s := t.stats[h.class]
	s.Lost[protocol.LostGone]++
	s.FoundGone++
	out.Notices = append(out.Notices, Notice{Kind: NoticeLost, Mode: h.mode,
		Reason: protocol.LostGone, Released: true, Degraded: h.fence == 0, Key: l.key,
		Session: h.s, Owner: h.owner, Fence: h.fence, Took: h.releasedAt - h.since})
	t.dropLast(l)
}
