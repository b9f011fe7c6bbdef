package cache

// Losses that show at the release. A store that was flushed, say, does not know a lease any more. If that shows
// only when its last hold has been released, the owner may have worked without the lock. So the hold counts as
// lost then. It counts as released, too, because that was counted before.

// keepLast keeps h, the last hold of its lease, which was released at now, until the store has confirmed the lease
// or its end. In what is kept, end is when the lease ends by itself, and last is when the hold was released.
func (t *Table) keepLast(h *hold, now int64) {
	l := h.l
	t.dropLast(l)
	l.last = t.newHold()
	*l.last = hold{l: l, s: h.s, owner: h.owner, fence: h.fence, mode: h.mode, class: h.class, since: h.since,
		end: t.deadline(l), last: now}
}

// dropLast forgets the hold that keepLast has kept, if there is one.
func (t *Table) dropLast(l *Lease) {
	if l.last != nil {
		t.freeHold(l.last)
		l.last = nil
	}
}

// foundGone counts the hold that keepLast has kept as lost: the store does not know the lease, though the lease
// should not have ended by now.
func (t *Table) foundGone(l *Lease, now int64, out *Effects) {
	h := l.last
	if h == nil || now >= h.end {
		return
	}
	s := t.stats[h.class]
	s.Lost[LostGone]++
	s.FoundGone++
	n := out.notice(NoticeLost, h, h.last-h.since)
	n.Reason, n.Released = LostGone, true
	t.dropLast(l)
}
