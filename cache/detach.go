package cache

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file handles detached holds. An acquire can ask for its key to stay closed for a while after
// the grant (a keep). If the owner gives the hold up before that, or its session ends, the hold
// becomes detached. It moves from its session to the record of its user's detached holds, as a
// fixed hold that ends with the keep. All other code, such as renewals, expiry and snapshots,
// treats it as any other hold.
//
// The lease lasts at the store until the end of the keep even if this daemon ends, as far as the
// store can do that (StoreTraits.Keeps). For this a renewal follows the grant at once, and all
// further renewals ask for at least that time. The validity that is stated to the owner does not
// depend on it: heldFields.until counts from the TTL that the owner asked for. Once all holds are
// detached, no client relies on the lease, and heldFields.kept is the deadline.

// NewDetached returns the record of the detached holds of the user u, over the given number of
// shards. It is for Session.Detached.
func NewDetached(id uint64, shards int, u *Use) *Session {
	s := NewSession(id, shards)
	s.User = u
	s.isDetached = true
	s.Ended.Store(true)
	return s
}

// IsDetached reports whether s is the record of a user's detached holds.
func (s *Session) IsDetached() bool { return s.isDetached }

// detached reports whether no client has h.
func (h *hold) detached() bool { return h.s.isDetached }

// keepOf returns until when h keeps its key closed; 0 if it does not.
func (l *Lease) keepOf(h *hold) int64 {
	if l.optional == nil {
		return 0
	}
	return l.optional.keeps[h]
}

// setKeep makes h keep its key closed until the given time.
func (l *Lease) setKeep(h *hold, until int64) {
	r := l.withOptional()
	if r.keeps == nil {
		r.keeps = make(map[*hold]int64)
	}
	r.keeps[h] = until
	r.keepLatest = max(r.keepLatest, until)
}

func (l *Lease) dropKeep(h *hold) {
	r := l.optional
	if r == nil || len(r.keeps) == 0 {
		return
	}
	if delete(r.keeps, h); len(r.keeps) == 0 {
		r.keeps = nil
	}
}

// keep records the keep that w has asked for, when h is granted to it.
func (t *Table) keep(h *hold, w *waiter) {
	if w.keep == 0 {
		return
	}
	l, until := h.l, h.since+w.keep
	if h.end != 0 { // a reload has shortened the longest hold
		until = min(until, h.end)
	}
	l.setKeep(h, until)
	l.held.unkept = l.st.Keeps > 0
}

// bound reports whether the end of this daemon may end the keep of h early.
func (h *hold) bound() bool {
	until := h.l.keepOf(h)
	return until != 0 && ttlUntil(until, h.since) > int64(h.l.st.Keeps)
}

// keepTTL returns the TTL with which l lasts until the end of its holds' keeps, as far as the store
// can do that; 0 if no hold has one.
func (l *Lease) keepTTL(now int64) int64 {
	if l.optional == nil || l.optional.keepLatest <= now {
		return 0
	}
	return min(ttlUntil(l.optional.keepLatest, now), int64(l.st.Keeps))
}

// Unkept counts the leases whose stores have yet to be told of a keep.
func (t *Table) Unkept(now int64) (n int) {
	for l := range t.all() {
		if l.state == stateHeld && l.keepTTL(now) > 0 &&
			(l.held.unkept || l.held.renewGen != 0 || l.keepUnconfirmed(now)) {
			n++
		}
	}
	return n
}

// keepUnconfirmed reports whether the store could keep l for longer than it has confirmed, because
// a renewal has failed. The renewer will repeat the renewal.
func (l *Lease) keepUnconfirmed(now int64) bool {
	until := l.optional.keepLatest
	return l.st.renews() && max(l.held.until, l.held.kept) < until &&
		ttlUntil(until, now) <= int64(l.st.Keeps)
}

// keptTooLong reports whether the store keeps l for longer than ttl because of a keep whose hold
// has ended early. If this daemon ended, the key would stay closed for that time. So this host
// releases l instead of handing it off.
func (l *Lease) keptTooLong(ttl, now int64) bool {
	return l.nHolds == 0 && l.st.Keeps > 0 && l.held.keptFor-now > ttl
}

// ttlUntil is the inverse of LeaseDeadline.
func ttlUntil(until, now int64) int64 {
	return (until-now+int64(2*time.Millisecond))*100/99 + 1
}

// useKept makes the store's deadline the deadline of l if all its holds are detached.
func (l *Lease) useKept() {
	if l.held.kept > l.held.until && l.allDetached() {
		l.held.until = l.held.kept
	}
}

// allDetached reports whether l is held for detached holds alone.
func (l *Lease) allDetached() bool {
	for h := range l.holds.all() {
		if !h.detached() {
			return false
		}
	}
	return l.state == stateHeld && l.nHolds > 0
}

// joinDetached undoes useKept, because a client that asked for ttl joins the detached holds of l.
// Otherwise no renewal would find out in time that the store has lost the lease.
func (t *Table) joinDetached(l *Lease, ttl, now int64, out *Effects) {
	if until := LeaseDeadline(now, ttl); until < l.held.until && l.st.renews() && l.allDetached() {
		l.held.until = until
		t.retrack(l, false, out)
	}
}

// detach detaches h, which its owner gives up, if h has a keep that is not over. It reports whether
// it has done so. The caller has to call advance afterwards.
func (t *Table) detach(h *hold, now int64, out *Effects) bool {
	l, s := h.l, h.s
	until := l.keepOf(h)
	if until <= now || h.forced || h.detached() || l.state != stateHeld {
		return false
	}
	l.unindexOwner(h)
	x := &s.index[t.cfg.Shard]
	if x.survey == h {
		x.survey = x.holds.next(h)
	}
	x.holds.remove(h)
	s.Holds.Add(-1)
	t.markShard(s)
	h.s = s.Detached
	h.s.Holds.Add(1)
	h.s.index[t.cfg.Shard].holds.insert(h, nil)
	t.markShard(h.s)
	h.count, h.end, h.maxEnd = 1, until, 0
	l.minEnd = min(l.minEnd, until)
	l.held.fence = 0 // as dropHold does
	if out.Audit {
		out.notice(NoticeDetached, h, now-h.since).Session = s
	}
	return true
}

// loseSilent ends h, whose owner was silent for too long, and tells the owner, unless the owner has
// been told before. A hold with a keep becomes detached instead.
func (t *Table) loseSilent(h *hold, now int64, out *Effects) {
	if h.l.keepOf(h) <= now {
		t.lose(h, protocol.LostSilent, now, out)
		return
	}
	out.Messages = append(out.Messages, lostMessage(h, protocol.LostSilent))
	t.detach(h, now, out)
}

var errNotDetached = errors.New("no detached hold of this key has this fence")

// errKeepOutage refuses a keep where this host would have to grant the key alone.
var errKeepOutage = errors.New("keep needs the store, which is down")

var errNotYours = errors.New("the detached hold belongs to another user")

// ReleaseDetached ends the detached hold of a key that has the fence of q, as Release ends other
// holds. The hold has to belong to the user of the session of q, unless anyUser is true.
func (t *Table) ReleaseDetached(q *Release, anyUser bool, now int64, out *Effects) {
	var h *hold
	others := false
	for _, l := range t.claimsOf(string(q.Key)) {
		t.expire(l, now, out)
		for o := range l.holds.all() {
			switch {
			case h != nil || !o.detached() || o.fence != q.Fence:
			case anyUser || o.s == q.Re.Session.Detached:
				h = o
			default:
				others = true
			}
		}
		if h != nil {
			t.giveUp(l, h, q, now, out)
			return
		}
		t.advance(l, now, out) // expire may have ended it
	}
	if others {
		out.fail(q.Re, protocol.Denied, errNotYours)
	} else {
		out.fail(q.Re, protocol.NotHeld, errNotDetached)
	}
}

// claimsOf returns the leases that can be held for a key.
func (t *Table) claimsOf(key string) (all []*Lease) {
	for l := range t.named(key) {
		all = append(all, l)
	}
	return all
}
