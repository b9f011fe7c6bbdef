package cache

import "slices"

// Unlocking by force. The owner is told at once that his hold is lost, but he believes in it
// until he reads that: so the hold stays where it is and keeps the key closed, not renewed
// and not to be entered any more, until what has been stated of it is over, or its owner
// releases it, or its session ends.

// Force ends the holds of a key, those of its semaphore if permit is true, and only those
// under fence if that is not 0. It returns those that it has ended, and when the last of what
// closes the key, those that were ended before included, is over; now when nothing does.
func (t *Table) Force(key string, permit bool, fence uint64, now int64, out *Effects) (ended []Held, free int64) {
	l := t.leases[key]
	if permit {
		l = t.sems[key]
	}
	if l == nil {
		return nil, now
	}
	free = t.forceAll(l, fence, now, out, func(h *hold) {
		t.tellLost(h, LostForced, now, out)
		t.force(h)
		ended = append(ended, t.shown(h))
	})
	return ended, free
}

// Shut ends all holds as Force does, because there is no more time for them. Their sessions are to
// be ended at once, which tells the owners.
func (t *Table) Shut(now int64, out *Effects) {
	for _, l := range t.byToken() {
		t.forceAll(l, 0, now, out, func(h *hold) {
			t.countLost(h, LostShutdown, now, out)
			t.force(h)
		})
	}
}

// forceAll has end called for the holds of a lock, or of a semaphore, that have not been forced yet;
// fence and free are Force's.
func (t *Table) forceAll(of *Lease, fence uint64, now int64, out *Effects, end func(*hold)) (free int64) {
	free = now
	ls := []*Lease{of}
	if of.sem != nil {
		ls = slices.Clone(of.sem.permits) // advancing one may end others
	}
	for _, l := range ls {
		if l.dropped() {
			continue
		}
		t.expire(l, now, out)
		for h := l.holds; h != nil; h = h.next {
			if fence != 0 && h.fence != fence {
				continue
			}
			if !h.forced {
				end(h)
			}
			free = max(free, h.end)
		}
		if l.state == stateClosed {
			free = max(free, l.endsAt)
		}
		t.advance(l, now, out)
	}
	return free
}

// force closes l's key for what has been stated of a hold that its owner has lost.
func (t *Table) force(h *hold) {
	l := h.l
	l.unindexOwner(h)
	h.forced, h.end = true, t.valid(h)
	l.minEnd = min(l.minEnd, h.end)
	l.fence = 0 // as dropHold does
	t.forced++
}

// forcedOnly says that l has holds, and that all of them have been lost by force.
func (l *Lease) forcedOnly() bool {
	for h := l.holds; h != nil; h = h.next {
		if !h.forced {
			return false
		}
	}
	return l.holds != nil
}

// acknowledged is for a release that has found no hold: if that was lost by force, its owner
// does not believe in it any more. He may have sent the release before he could know, and it
// counts all the same; but one of several entries only lowers the count.
func (t *Table) acknowledged(q *Release, now int64, out *Effects) {
	if t.forced == 0 {
		return
	}
	for l := range t.named(string(q.Key)) {
		for h := l.holds; h != nil; h = h.next {
			if !h.forced || h.s != q.Re.Session || h.owner != q.Owner || h.fence != q.Fence {
				continue
			}
			if h.count--; h.count == 0 || q.All {
				t.dropHold(h)
				t.advance(l, now, out)
			}
			return
		}
	}
}
