package cache

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Lingering: an idle lease is kept for a while in case this host wants it again.
//
// It is kept when the key's own past says that this saves more than it costs. Asked
// for again here in time, it saves the trips of the release and of the acquire. Wanted by
// another host first, it costs that one the way of its wish to us, of our release, and of
// the news of it. Once another host has wanted a key, this one does not keep it idle
// for a time.

const (
	savedTrips = 2 // to the store
	costTrips  = 3
	habitUses  = 16 // so many uses are remembered; then all count half
)

// habit is how a key has come to be used again, lately.
type habit struct {
	lingers *Lease // the lease that is kept idle; nil when none is
	freed   int64  // when nobody here held the key any more; 0 while somebody does
	banned  int64  // it does not linger before
	again   uint8  // here, and in time
	later   uint8  // here, too late
	others  uint8  // by another host, before that
}

// pays says that to keep the lease idle is expected to save more than it costs.
func (h *habit) pays() bool {
	return h.again > 0 && savedTrips*int(h.again) > costTrips*int(h.others)
}

func (h *habit) count(n *uint8) {
	*n++
	if h.again+h.later+h.others > habitUses {
		h.again, h.later, h.others = h.again/2, h.later/2, h.others/2
	}
}

// habits are those of the keys used last. What is forgotten is not kept idle any longer.
type habits struct {
	lru     *simplelru.LRU[string, *habit]
	evicted *Lease // that has to be given up
}

func (x *habits) get(key string) *habit {
	if x.lru == nil {
		return nil
	}
	h, _ := x.lru.Get(key)
	return h
}

// add makes a habit of a key that has none.
func (x *habits) add(key string, most int) *habit {
	if x.lru == nil {
		x.lru, _ = simplelru.NewLRU(max(1, most), func(_ string, old *habit) { x.evicted = old.lingers })
	}
	h := new(habit)
	x.lru.Add(key, h)
	return h
}

// lingers says that l, which nobody holds, is kept. Who waits for its release hears of
// it: the lease stays with this host.
func (t *Table) lingers(l *Lease, now int64, out *Effects) bool {
	if l.ns.Linger == 0 || l.head != nil {
		return false
	}
	free := l.nWaits == 0 && !l.moved() && !l.contended && !l.downgrade && !t.noLinger
	if until := l.idleUntil(); until != 0 {
		return free && now < until
	}
	if l.nWaits > 0 {
		return false
	}
	h := t.habits.get(l.key)
	if h == nil {
		h = t.habits.add(l.key, t.cfg.Habits)
		if old := t.habits.evicted; old != nil {
			t.habits.evicted = nil
			old.optional.idleUntil = now
			t.advance(old, now, out)
		}
	}
	h.freed = now
	if !free || now < h.banned || !h.pays() || l.st.renews() && l.until-now < l.ttl/3 {
		return false
	}
	h.lingers = l
	l.withOptional().idleUntil = now + min(int64(l.ns.Linger), l.ttl/2)
	l.stays(out)
	return true
}

// idleUntil is how long l is kept with no hold on it; 0 when it is not.
func (l *Lease) idleUntil() int64 {
	if l.optional == nil {
		return 0
	}
	return l.optional.idleUntil
}

// used notes that l, which nobody held, is held again.
func (t *Table) used(l *Lease, now int64) {
	t.endIdle(l) // first, because a reload may have disabled linger since
	if l.ns.Linger == 0 || l.head != nil {
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

// contested notes that another host uses the key too, and with ours that it wants what
// this one has.
func (t *Table) contested(l *Lease, ours bool, now int64) {
	if l.ns.Linger == 0 || l.head != nil {
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

// endIdle ends l's lingering, if it does; what becomes of l is the caller's.
func (t *Table) endIdle(l *Lease) {
	if l.idleUntil() == 0 {
		return
	}
	l.optional.idleUntil = 0
	if h, ok := t.habits.lru.Peek(l.key); ok {
		h.lingers = nil
	}
}

// EndLinger gives up what lingers, and keeps nothing idle from here on.
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

// Tries from other hosts. One that finds a key lingering elsewhere would fail although
// nobody holds it. So where leases linger a try queues at the store for a moment, which
// ends the lingering, and says busy only if that has not helped.

const (
	tryLeast = 10 * time.Millisecond
	tryTrips = 5
)

// tryWait is how long a try waits for a lease that may linger on another host.
func (st *storeState) tryWait() int64 {
	return max(int64(tryLeast), tryTrips*st.trip) + int64(st.Notice)
}

// startsShortLived says that what is asked for now is for tries alone, and that they wait for
// a moment.
func (t *Table) startsShortLived(l *Lease) bool {
	return l.ns.Linger > 0 && l.head == nil && l.nHolds == 0 && l.st.Queue && !l.longWaits()
}

// longWaits says that somebody waits here for longer than a try does.
func (l *Lease) longWaits() bool { return l.nWaits > l.nTries }

// inMoment says that tries may still wait in l's brief place.
func (l *Lease) inMoment(now int64) bool {
	return l.shortLived && (l.optional.tryUntil == 0 || now < l.optional.tryUntil)
}
