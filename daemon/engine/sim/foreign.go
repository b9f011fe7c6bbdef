package sim

import "github.com/locksidecar/locksidecar/cache"

// foreignTTL is the longest TTL of a plain locker's key, in milliseconds.
const foreignTTL = 4000

// foreigner is a program without a daemon that locks the same keys as textbooks do: SET key token
// NX PX ttl, and compare-and-delete.
type foreigner struct {
	w     *World
	s     *simStore // a Redis
	id    int
	off   int64 // of its clock, as for host
	ppm   int64
	key   *key
	n     uint64 // how many tokens it has used
	held  bool
	until int64 // end of its hold, on its clock
	after int   // how many losses the store had had at the grant
}

func (w *World) newForeigner(id int) *foreigner {
	f := &foreigner{w: w, s: w.stores[0], id: id, off: w.between(sec, 1000*sec),
		ppm: w.between(-drift, drift+1)}
	w.after(w.skewed(sec), f.act)
	return f
}

func (f *foreigner) clock() int64 {
	d := f.w.now - epoch
	return f.off + d + d*f.ppm/1_000_000
}

func (f *foreigner) believes() bool { return f.held && f.clock() < f.until }

// act tries to take a key, and releases it after a while.
func (f *foreigner) act() {
	w := f.w
	if w.calm {
		return
	}
	k, ttl := w.keys[w.pick(len(w.keys))], w.between(200, foreignTTL)
	f.n++
	n, sent := uint64(f.id)<<32|f.n, f.clock()
	w.after(w.skewed(w.p.Latency), func() {
		took, losses := w.now >= f.s.paused && f.s.redis.foreignTake(k.name, n, ttl), len(f.s.losses)
		w.after(w.skewed(w.p.Latency), func() {
			if took {
				f.took(k, cache.LeaseDeadline(sent, ttl*ms), losses)
				w.after(w.skewed(w.p.Hold), func() { f.give(k, n) })
			} else {
				w.after(w.skewed(300*ms), f.act)
			}
		})
	})
}

func (f *foreigner) took(k *key, until int64, losses int) {
	w := f.w
	f.key, f.held, f.until, f.after = k, true, until, losses
	if !f.believes() {
		return
	}
	w.counts.Tallies[foreignHolds]++
	w.say(k, "foreigner %d holds", f.id)
	if o := k.foreign; o != nil && o != f && o.key == k && o.believes() && !f.s.lostSince(o.after) {
		w.fail("two holders", k.name, "foreigners %d and %d: the model of the store is wrong", o.id, f.id)
	}
	k.foreign = f
	for _, h := range k.holds {
		if h.believed() {
			w.meetsForeign(f, h)
		}
	}
}

func (f *foreigner) give(k *key, n uint64) {
	f.held = false
	f.w.say(k, "foreigner %d gives it back", f.id)
	f.w.after(f.w.skewed(f.w.p.Latency), func() { f.s.redis.foreignGive(k.name, n) })
	f.w.after(f.w.skewed(2*sec), f.act)
}

// lostSince reports whether the store has lost leases after its first n losses, so that a validity
// from before the loss may still last.
func (s *simStore) lostSince(n int) bool {
	for _, l := range s.losses[n:] {
		if s.w.now < l.until {
			return true
		}
	}
	return false
}

// meetsForeign checks that a client and a plain locker do not both hold a key.
func (w *World) meetsForeign(f *foreigner, h *hold) {
	if h.degraded || !h.at.shares(f.s) {
		w.counts.Tallies[apart]++
		return
	}
	waived := f.s.lostSince(f.after)
	for _, l := range f.s.losses[:f.after] {
		waived = waived || h.fence>>10 <= l.base && w.now < l.until
	}
	if waived {
		w.counts.Tallies[waivedOverlap]++
		return
	}
	w.fail("two holders", h.key.name, "foreigner %d (%d ms left) and client %d (mode %d, fence %d·%d, %d ms left)",
		f.id, (f.until-f.clock())/ms, h.c.id, h.mode, h.fence>>10, h.fence&1023, h.valid-h.c.clock()/ms)
}
