package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// This file has acquires with a keep, whose keys stay closed for a while after the grant whatever
// happens to the client, and detached holds.

// kept is a daemon's promise that a key stays closed after a grant. It begins when the daemon
// answers, and ends with until, with a loss of the hold, or with a release that is allowed to end
// it.
type kept struct {
	as       *hold // a record with what the checks need of the hold: key, fence, mode, store
	h        *host
	id       audited // in the audit log
	until    int64   // by the host's clock
	late     int64   // how much later it may end, because the time of the grant is not known exactly
	mayEnd   bool    // a client has asked for its end
	left     bool    // its daemon has ended; the store keeps it
	over     bool
	overlaps string // another daemon has granted the key meanwhile: then the hold has to be lost
}

// newKeepProfile gives some runs acquires with keeps.
func newKeepProfile(p *Profile, pick func(n int) int) {
	if p.Chain || pick(4) != 0 {
		return
	}
	p.Keep = []int{100, 400}[pick(2)]
	p.Keeps = [][]int64{{300, 2000}, {1000, 5000}, {20_000}, {100, 20_000}}[pick(4)]
}

// keepGrain is the rounding of the end of a hold.
const keepGrain = ms

// longestKeep returns the longest keep of the run, in nanoseconds.
func (p *Profile) longestKeep() (longest int64) {
	for _, keep := range p.Keeps {
		longest = max(longest, keep*ms)
	}
	return longest
}

// keep draws the keep of an acquire.
func (c *client) keep(q *request, p *protocol.Request) {
	w := c.w
	if !w.chance(w.p.Keep) {
		return
	}
	q.keep = w.p.Keeps[w.pick(len(w.p.Keeps))]
	if q.fixed {
		q.keep = min(q.keep, q.ttl)
	}
	if w.p.MaxHold > 0 {
		q.keep = min(q.keep, w.p.MaxHold/ms)
	}
	p.Keep = uint64(q.keep)
}

// promises records a keep when the daemon answers the acquire.
func (h *host) promises(k *conn, q *request, g *protocol.Grant) {
	id := audited{k.s.ID(), q.key.name, q.owner, g.Fence}
	since, live := h.since[id]
	if q.keep == 0 || g.Count != 1 || g.Fence == 0 || !live || h.kept[id] != nil {
		return
	}
	w := h.w
	at, link := h.where(q.key, g.Fence)
	x := &kept{h: h, id: id, until: since + q.keep*ms, late: h.clock() - since, as: &hold{c: k.c, k: k, key: q.key, at: at,
		owner: q.owner, fence: g.Fence, mode: q.mode}}
	h.kept[id] = x
	w.kept = append(slices.DeleteFunc(w.kept, func(o *kept) bool { return !o.lasts() }), x)
	w.counts.Tallies[keeps]++
	bound := g.Flags&protocol.GrantBound != 0
	if link != nil && bound != (link.info().Keeps == 0) {
		w.fail("kept", q.key.name, "fence %d·%d has the flag bound %v at %s", g.Fence>>10, g.Fence&1023,
			bound, at.name)
	}
	w.say(q.key, "host %d keeps fence %d·%d for %d ms", h.id, g.Fence>>10, g.Fence&1023, q.keep)
}

// lasts reports whether the key has to be closed.
func (x *kept) lasts() bool { return !x.over && x.h.boot() < x.until-keepGrain }

// keptOf returns the keep of a hold of this client; nil if it has none.
func (c *client) keptOf(h *hold) *kept {
	if c.k.s == nil {
		return nil
	}
	return c.h.kept[audited{c.k.s.ID(), h.key.name, h.owner, h.fence}]
}

// keepNotice checks a notice against the keeps. It returns how the audit log names the hold.
func (h *host) keepNotice(n *cache.Notice) (id audited) {
	w := h.w
	id = audited{n.Session.ID, n.Key, n.Owner, n.Fence}
	if n.Session.IsDetached() {
		return h.detachedEnds(n)
	}
	x := h.kept[id]
	early := x != nil && h.clock() < x.until-keepGrain
	switch n.Kind {
	case cache.NoticeAcquired:
		if w.p.Keep > 0 {
			h.since[id] = h.decided()
		}
	case cache.NoticeDetached:
		w.counts.Tallies[detaches]++
		delete(h.since, id)
		delete(h.kept, id)
		if x != nil && h.decided() >= x.until+x.late {
			w.fail("kept", n.Key, "fence %d is detached %d ms after the end of its keep", n.Fence,
				(h.clock()-x.until)/ms)
		}
		if x == nil {
			x = &kept{h: h, over: true} // its client has gone before the answer
		}
		x.id = audited{0, n.Key, n.Owner, n.Fence}
		h.detached = append(h.detached, x)
	case cache.NoticeReleased, cache.NoticeLost:
		delete(h.since, id)
		delete(h.kept, id)
		if x == nil {
			break
		}
		x.ends(n, early && !x.mayEnd)
	}
	return id
}

// detachedEnds checks the end of a detached hold.
func (h *host) detachedEnds(n *cache.Notice) (id audited) {
	id = audited{0, n.Key, n.Owner, n.Fence}
	if n.Released {
		return id // it has ended before
	}
	// Readers of one phase may have the same fence. The one that ends is the one that may.
	best, fits := -1, 0
	for i, x := range h.detached {
		fit := 1
		switch {
		case x.id != id:
			continue
		case !x.over && h.clock() >= x.until-keepGrain:
			fit = 4
		case x.mayEnd:
			fit = 3
		case x.over:
			fit = 2
		}
		if fit > fits {
			best, fits = i, fit
		}
	}
	if best >= 0 { // else the audit log has no such hold either
		x := h.detached[best]
		h.detached = slices.Delete(h.detached, best, best+1)
		x.ends(n, fits == 1)
	}
	return id
}

// ends records the end of the hold. early is true if nothing but a loss may end it yet.
func (x *kept) ends(n *cache.Notice, early bool) {
	w := x.h.w
	was := x.over
	x.over = true
	switch {
	case was, n.Kind == cache.NoticeLost:
	case early:
		w.fail("kept", n.Key, "fence %d·%d has ended (cause %d) %d ms before the end of its keep",
			n.Fence>>10, n.Fence&1023, n.Cause, (x.until-x.h.clock())/ms)
	// A daemon that was frozen finds the end of the hold and of its lease at the same time.
	case x.overlaps != "" && !x.mayEnd && x.h.clock() < x.until+100*ms:
		w.fail("kept", n.Key, "fence %d·%d was not lost, although %s", n.Fence>>10, n.Fence&1023,
			x.overlaps)
	default:
		w.counts.Tallies[keepsEnded]++
	}
}

// meetsKept checks that a new hold of a key begins while no daemon keeps the key closed to it.
func (w *World) meetsKept(h *hold) {
	k, crowd := h.key, 0
	for _, x := range w.kept {
		o := x.as
		if o.key != k || !x.lasts() || o.sameAs(h) || x.believed() ||
			h.mode == protocol.Shared && o.mode == protocol.Shared {
			continue
		}
		if o.apart(h) || waives(o, h) || waives(h, o) {
			w.counts.Tallies[keepsWaived]++
			continue
		}
		if k.permits > 0 {
			if o.sameDaemon(h) { // another daemon may not have noticed yet that a permit is lost
				crowd++
			}
			if crowd < k.permits {
				continue
			}
		}
		if !x.left && !o.sameDaemon(h) {
			x.overlaps = "another daemon has granted the key"
			continue
		}
		w.fail("kept", k.name, "client %d holds with fence %d·%d, and host %d keeps fence %d·%d for another %d ms",
			h.c.id, h.fence>>10, h.fence&1023, x.h.id, o.fence>>10, o.fence&1023,
			(x.until-x.h.boot())/ms)
	}
}

// sameAs reports whether o and h are records of the same hold.
func (o *hold) sameAs(h *hold) bool {
	return o.k == h.k && o.key == h.key && o.owner == h.owner && o.fence == h.fence
}

// believed reports whether the client still believes in the hold. Then meets compares it.
func (x *kept) believed() bool {
	h := x.as.c.known[grantID{x.as.key, x.as.owner, x.as.fence}]
	return h != nil && h.k == x.as.k && h.believed()
}

// leaveKept is called when a daemon ends. A store with TTLs keeps the leases that it has confirmed.
func (h *host) leaveKept() {
	w := h.w
	for _, x := range w.kept {
		if x.h != h || x.left || x.over {
			continue
		}
		if !x.lasts() || !x.confirmed() {
			x.over = true
			continue
		}
		x.left = true
		w.counts.Tallies[keepsLeft]++
	}
	clear(h.kept)
	clear(h.since)
	h.detached = nil
}

// storesKnow checks, when the daemon has drained in time, that the stores know which leases they
// have to keep.
func (h *host) storesKnow() {
	for _, x := range h.w.kept {
		s := x.as.at
		if x.h == h && !x.left && x.lasts() && x.as.mode == protocol.Exclusive && x.as.key.permits == 0 &&
			(s.kind == likeRedis || s.kind == likeEmbedded) && !s.lostSince(0) && !x.confirmed() {
			h.w.fail("kept", x.id.key, "host %d has drained, and %s does not keep fence %d·%d for another %d ms",
				h.id, s.name, x.as.fence>>10, x.as.fence&1023, (x.until-h.boot())/ms)
		}
	}
}

// confirmed reports whether the store keeps the lease for long enough. A daemon that ends directly
// after a grant may not have told the store yet. A lease at one of several daemons' readers counts
// as not confirmed.
func (x *kept) confirmed() bool {
	s, name := x.as.at, x.as.key.name
	switch s.kind {
	case likeRedis:
	case likeEmbedded:
		return slices.ContainsFunc(s.saved.kept, func(l leftLease) bool {
			return l.key == name && l.mode == x.as.mode && l.until >= x.until-keepGrain
		})
	default:
		return false
	}
	now := s.clock() / 1000 / us
	least := now + (x.until-x.h.boot())/ms*99/100
	k := s.redis.keys[name]
	return x.as.mode == protocol.Exclusive && x.as.key.permits == 0 && k != nil &&
		k.kind == keyExclusive && x.h.bases[baseOf{x.as.key, x.as.fence >> 10}] != nil &&
		x.h.bases[baseOf{x.as.key, x.as.fence >> 10}].inst == k.token.inst && k.exp >= least
}

// noneTooLong checks that detached holds end with their keeps.
func (h *host) noneTooLong() {
	if !h.up || h.passing || h.w.now < h.frozen+silentSlack {
		return
	}
	for _, x := range h.detached {
		if x.until != 0 && h.boot() > x.until+x.late+silentSlack {
			h.w.fail("kept", x.id.key, "host %d: fence %d is still detached %d ms after the end of its keep",
				h.id, x.id.fence, (h.boot()-x.until)/ms)
		}
	}
}

// releaseDetached releases a detached hold of this host, of any user.
func (c *client) releaseDetached() {
	all := slices.DeleteFunc(slices.Clone(c.h.detached), func(x *kept) bool { return x.over })
	if len(all) == 0 {
		return
	}
	x := all[c.w.pick(len(all))]
	q := &request{op: protocol.OpRelease, key: x.as.key, owner: uint64(c.w.pick(3)), detached: x}
	fence := x.as.fence
	if q.stale = q.owner == 2; q.stale { // as if it were about an earlier hold
		fence -= 1 << 10
	}
	for _, o := range c.h.detached { // readers of one phase may have the same fence
		if !o.over && o.id.key == x.id.key && o.id.fence == fence && c.mine(o) {
			o.mayEnd = true
		}
	}
	c.send(q, &protocol.Request{Key: []byte(q.key.name), Owner: q.owner, Fence: fence,
		Flags: protocol.FlagDetached})
}

// mine reports whether this client may release a detached hold.
func (c *client) mine(x *kept) bool { return c.uid == 0 || c.uid == x.as.c.uid }

// releasedDetached handles the answer to the release of a detached hold.
func (c *client) releasedDetached(q *request, code protocol.Code) {
	w, x := c.w, q.detached
	if q.stale {
		return // see keepNotice
	}
	// Another reader's hold may have the same fence.
	alone := x.as.mode != protocol.Shared
	switch {
	case code == protocol.OK || code == protocol.Unknown:
		if w.counts.Tallies[detachedReleased]++; alone && !c.mine(x) {
			w.fail("kept", q.key.name, "client %d of user %d has released the detached fence %d of user %d",
				c.id, c.uid, x.as.fence, x.as.c.uid)
		}
	case code == protocol.Denied:
		if w.counts.Tallies[detachedDenied]++; c.mine(x) {
			w.fail("kept", q.key.name, "client %d of user %d may not release the detached fence %d of user %d",
				c.id, c.uid, x.as.fence, x.as.c.uid)
		}
	case code != protocol.NotHeld:
		w.fail("reply", q.key.name, "%v to the release of a detached hold", code)
	}
}
