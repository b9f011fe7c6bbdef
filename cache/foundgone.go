package cache

import "github.com/locksidecar/locksidecar/protocol"

// This file counts losses that are found only after the release. A store that was flushed, for
// example, does not know a lease any more. If the answer to the release shows that, the owner may
// have worked without the lock, so the hold counts as lost. It also counts as released, because the
// release was counted before.

// releasedHold is the last hold of a lease. It was released, and the store has not yet shown
// whether it still knew the lease.
type releasedHold struct {
	s             *Session
	owner, fence  uint64
	since         int64 // when the hold was granted
	releasedAt    int64
	leaseDeadline int64 // until then, the store should know the lease
	class         uint16
	mode          Mode
}

// rememberReleased remembers h, the last hold of its lease, which was released at now. The record
// is kept until the store has confirmed the lease or its end.
func (t *Table) rememberReleased(h *hold, now int64) {
	l := h.l
	t.forgetReleased(l)
	l.lastReleased = t.freeReleased.get()
	*l.lastReleased = releasedHold{s: h.s, owner: h.owner, fence: h.fence, since: h.since,
		releasedAt: now, leaseDeadline: t.deadline(l), class: h.class, mode: h.mode}
}

// forgetReleased forgets the hold that rememberReleased has recorded, if there is one.
func (t *Table) forgetReleased(l *Lease) {
	if l.lastReleased != nil {
		*l.lastReleased = releasedHold{}
		t.freeReleased.put(l.lastReleased)
		l.lastReleased = nil
	}
}

// foundGone counts the hold that rememberReleased has recorded as lost: the store does not know the
// lease, although the lease should not have ended yet.
func (t *Table) foundGone(l *Lease, now int64, out *Effects) {
	h := l.lastReleased
	if h == nil || now >= h.leaseDeadline {
		return
	}
	s := t.stats[h.class]
	s.Lost[protocol.LostGone]++
	s.FoundGone++
	out.Notices = append(out.Notices, Notice{Kind: NoticeLost, Mode: h.mode,
		Reason: protocol.LostGone, Released: true, Degraded: h.fence == 0, Key: l.key,
		Session: h.s, Owner: h.owner, Fence: h.fence, Took: h.releasedAt - h.since})
	t.forgetReleased(l)
}
