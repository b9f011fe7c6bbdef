package cache

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file lets leases linger: an idle lease is kept for a while in case this host needs it again.
//
// The lease is kept if the key's history says that this saves more than it costs. If this host
// acquires the key again in time, the round trips of the release and of the acquire are saved. If
// another host acquires it first, that host waits longer: for the hint to this host, for the
// release, and for the news of the release. After another host has acquired a key, this host does
// not keep it idle for LingerPause.

const (
	savedTrips = 2  // round trips to the store that this host saves if it uses the key again
	costTrips  = 3  // round trips that another host waits longer
	habitUses  = 16 // the number of uses above which all counts of a habit are halved
)

// habit records how a key has recently been used again.
type habit struct {
	lingers *Lease // the lease that is kept idle; nil when none is
	freed   int64  // when the last hold on this host ended; 0 while there is one
	banned  int64  // it does not linger before this time
	// How often the key was used next: by this host in time, by this host too late to linger for it,
	// and by another host.
	again, later, others uint8
}

// pays reports whether keeping the lease idle is expected to save more than it costs.
func (h *habit) pays() bool {
	return h.again > 0 && savedTrips*int(h.again) > costTrips*int(h.others)
}

func (h *habit) count(n *uint8) {
	*n++
	if h.again+h.later+h.others > habitUses {
		h.again, h.later, h.others = h.again/2, h.later/2, h.others/2
	}
}

// habits has the habits of the keys that were used last. The lease of a key whose habit is
// forgotten no longer lingers.
type habits struct {
	lru     *simplelru.LRU[string, *habit]
	evicted *Lease // the lease of the habit that add has evicted; nil if it did not linger
}

func (x *habits) get(key string) *habit {
	if x.lru == nil {
		return nil
	}
	h, _ := x.lru.Get(key)
	return h
}

// add makes a habit for a key that has none.
func (x *habits) add(key string, limit int) *habit {
	if x.lru == nil {
		evict := func(_ string, old *habit) { x.evicted = old.lingers }
		x.lru, _ = simplelru.NewLRU(max(1, limit), evict)
	}
	h := new(habit)
	x.lru.Add(key, h)
	return h
}

// lingers reports whether l, which nobody holds, is kept. If so, it answers the request that waits
// for the release, because the lease stays with this host.
func (t *Table) lingers(l *Lease, now int64, out *Effects) bool {
	if l.ns.Linger == 0 || !l.isLock() {
		return false
	}
	free := t.mayLinger(l, now)
	if until := l.idleUntil(); until != 0 {
		return free && now < until
	}
	if !l.queue().empty() {
		return false
	}
	h := t.habitOf(l.key, now, out)
	h.freed = now
	if !free || now < h.banned || !h.pays() || l.st.renews() && l.held.until-now < l.ttl/3 {
		return false
	}
	h.lingers = l
	l.withOptional().idleUntil = now + min(int64(l.ns.Linger), l.ttl/2)
	l.confirmReleaser(out)
	return true
}

// mayLinger reports whether nothing forbids that l is kept, whatever the key's habit is.
func (t *Table) mayLinger(l *Lease, now int64) bool {
	return l.queue().empty() && !l.moved() && !l.held.contended && !l.held.downgrade &&
		!t.noLinger && !l.keptTooLong(l.ttl, now)
}

// habitOf returns the habit of a key. If it makes one, the habit that was used longest ago may be
// forgotten, and its lease no longer lingers.
func (t *Table) habitOf(key string, now int64, out *Effects) *habit {
	h := t.habits.get(key)
	if h == nil {
		h = t.habits.add(key, t.cfg.Habits)
		if old := t.habits.evicted; old != nil {
			t.habits.evicted = nil
			old.optional.idleUntil = now
			t.advance(old, now, out)
		}
	}
	return h
}

// idleUntil returns until when l is kept without a hold; 0 if it is not kept.
func (l *Lease) idleUntil() int64 {
	if l.optional == nil {
		return 0
	}
	return l.optional.idleUntil
}

// countReuse records that l, which nobody held, is held again.
func (t *Table) countReuse(l *Lease, now int64) {
	t.endIdle(l) // first, because a reload may have disabled linger since
	if l.ns.Linger == 0 || !l.isLock() {
		return
	}
	h := t.habits.get(l.key)
	if h == nil || h.freed == 0 {
		return
	}
	if now-h.freed <= int64(l.ns.Linger) {
		h.count(&h.again)
	} else {
		h.count(&h.later)
	}
	h.freed = 0
}

// countForeignUse records that another host uses the key too. ours is true if that host waits for
// the lease that this host has.
func (t *Table) countForeignUse(l *Lease, ours bool, now int64) {
	if l.ns.Linger == 0 || !l.isLock() {
		return
	}
	h := t.habits.get(l.key)
	if h == nil {
		return
	}
	h.count(&h.others)
	h.freed = 0
	if ours {
		h.banned = now + int64(l.ns.LingerPause)
	}
}

// endIdle ends the lingering of l, if it lingers. The caller decides what becomes of l.
func (t *Table) endIdle(l *Lease) {
	if l.idleUntil() == 0 {
		return
	}
	l.optional.idleUntil = 0
	if h, ok := t.habits.lru.Peek(l.key); ok {
		h.lingers = nil
	}
}

// EndLinger releases the leases that linger. From then on no lease lingers.
func (t *Table) EndLinger(now int64, out *Effects) {
	t.noLinger = true
	if t.habits.lru == nil {
		return
	}
	for _, h := range t.habits.lru.Values() {
		if h.lingers != nil {
			t.advance(h.lingers, now, out)
		}
	}
}

// The functions below are for tries where leases linger. A try for a key that lingers on another
// host would fail although nobody holds the key. So the try takes a short-lived queue entry at the
// store, which ends the lingering. The try is answered busy only if the key does not become free in
// time.

const (
	minTryWait   = 10 * time.Millisecond
	tryWaitTrips = 5
)

// tryWait returns how long a try waits for a lease that may linger on another host.
func (st *storeRecord) tryWait() int64 {
	return max(int64(minTryWait), tryWaitTrips*st.trip) + int64(st.Notice)
}

// startsShortLived reports whether the next OpJoin of l takes a short-lived queue entry: only
// tries wait for l, and they may wait for a moment.
func (t *Table) startsShortLived(l *Lease) bool {
	return l.ns.Linger > 0 && l.isLock() && l.nHolds == 0 && l.st.Queue && !l.longWaits()
}

// longWaits reports whether l has waiters that are not tries.
func (l *Lease) longWaits() bool { return l.queue().n > l.queue().tries }

// endTryWaits refuses the tries that have waited in l's short-lived queue entry for long enough. It
// returns when that time comes.
func (t *Table) endTryWaits(l *Lease, now int64, out *Effects) (wake int64) {
	switch {
	case !l.asked.shortLived:
		return Forever
	case l.triesMayWait(now):
		if l.asked.tryUntil == 0 {
			return Forever
		}
		return l.asked.tryUntil
	}
	t.refuseTries(l, protocol.Busy, -1, now, out)
	return Forever
}

// triesMayWait reports whether tries may still wait in l's short-lived queue entry.
func (l *Lease) triesMayWait(now int64) bool {
	return l.asked.shortLived && (l.asked.tryUntil == 0 || now < l.asked.tryUntil)
}
