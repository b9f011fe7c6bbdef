package cache

import "github.com/locksidecar/locksidecar/protocol"

// Forced unlocks. The owner is told at once that its hold is lost, but it relies on the hold until
// it reads that. So the hold stays in the table and keeps the key closed; it is not renewed and
// cannot be re-entered. It ends with the validity that was stated to its owner, with its owner's
// release, or with its session.

// Force ends the holds of a key: of its semaphore if permit is true, else of its lock. If fence is
// not 0, it ends only the holds with that fence. It returns the holds that it has ended. It also
// returns when no forced hold, ended now or earlier, keeps the key closed any more: now if there is
// none.
func (t *Table) Force(key string, permit bool, fence uint64, now int64, out *Effects) (
	ended []Held, free int64) {
	l := t.head(key, permit)
	if l == nil {
		return nil, now
	}
	free = t.forceAll(l, fence, now, out, func(h *hold) {
		if h.detached() { // no client relies on it
			ended = append(ended, t.describeHold(h))
			t.lose(h, protocol.LostForced, now, out)
			return
		}
		t.tellLost(h, protocol.LostForced, now, out)
		t.force(h)
		ended = append(ended, t.describeHold(h))
	})
	return ended, free
}

// Shut ends all holds as Force does, at the end of a drain. The caller has to end their sessions at
// once, which tells the owners. Holds with a keep stay: the end of a session detaches them. Then
// their stores keep them without this daemon, or the next daemon continues with them.
func (t *Table) Shut(now int64, out *Effects) {
	for _, l := range t.byToken() {
		t.forceAll(l, 0, now, out, func(h *hold) {
			switch l := h.l; {
			case l.keepOf(h) > now:
			case h.detached():
				t.lose(h, protocol.LostShutdown, now, out)
			default:
				t.countLost(h, protocol.LostShutdown, now, out)
				t.force(h)
			}
		})
	}
}

// ShutDetached ends the detached holds whose stores do not keep them without this daemon, because
// no next daemon continues with them.
func (t *Table) ShutDetached(now int64, out *Effects) {
	for _, l := range t.byToken() {
		t.forceAll(l, 0, now, out, func(h *hold) {
			if h.detached() && h.l.st.Keeps == 0 {
				t.lose(h, protocol.LostShutdown, now, out)
			}
		})
	}
}

// forceAll calls end for each hold of a lock, or of a semaphore, that has not been forced yet.
// fence and free are as in Force.
func (t *Table) forceAll(of *Lease, fence uint64, now int64, out *Effects,
	end func(*hold)) (free int64) {
	free = now
	for _, l := range of.claims() { // a copy, because advancing one permit may end others
		t.expire(l, now, out)
		for h := range l.holds.all() {
			if fence != 0 && h.fence != fence {
				continue
			}
			if !h.forced {
				end(h)
			}
			free = max(free, h.end)
		}
		if l.state == stateClosed {
			free = max(free, l.releasing.endsAt)
		}
		t.advance(l, now, out)
	}
	return free
}

// force makes h a lost hold, which keeps its key closed until the validity stated to its owner
// ends.
func (t *Table) force(h *hold) {
	l := h.l
	l.unindexOwner(h)
	l.dropKeep(h)
	h.forced, h.end = true, t.validUntil(h)
	l.minEnd = min(l.minEnd, h.end)
	l.held.fence = 0 // as dropHold does
	t.forced++
}

// forcedOnly reports whether l has holds and all of them are forced.
func (l *Lease) forcedOnly() bool {
	for h := range l.holds.all() {
		if !h.forced {
			return false
		}
	}
	return l.nHolds > 0
}

// releaseForced handles a release that has found no valid hold. If the hold was lost by force, the
// release proves that its owner no longer relies on it, even if the owner sent it before it knew of
// the loss. So the key opens. A release of one of several entries only lowers the count.
func (t *Table) releaseForced(q *Release, now int64, out *Effects) {
	if t.forced == 0 {
		return
	}
	for l := range t.named(string(q.Key)) {
		for h := range l.holds.all() {
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
