package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// key is one lock, with the state of the checks about it.
type key struct {
	name    string
	no      uint64            // its number among all keys, from 1
	permits int               // of a semaphore; 0 for a lock
	fences  map[fenceAt]*hold // of a semaphore: all permits that were ever granted
	holds   []*hold           // the holds that clients believe in, and a few that are over
	fenced  map[*simStore]*fenced
	own     map[*host]*ownFences
	foreign *foreigner      // the plain locker that took it last, by SET NX PX
	used    map[*host]int64 // true time at which a store carried out the last op of each host
}

// fenceAt is a fence of a store. Fences of different stores cannot be compared.
type fenceAt struct {
	at    *simStore
	fence uint64
}

// fenced has the fences of a key that have been seen from one store.
type fenced struct {
	exclusive *hold // the one with the highest fence so far
	shared    *hold
	latest    *hold  // the hold that has begun last
	resource  uint64 // the highest fence that the resource behind the lock has seen
	writer    *hold
}

// ownFences has the fences of a key that have been seen from one daemon, at whatever store. They
// rise where bases can be raised.
type ownFences struct {
	gen int
	fenced
}

// ownFencesOf returns the record of the fences that the daemon of h has given.
func (k *key) ownFencesOf(h *hold) *fenced {
	o := k.own[h.k.h]
	if o == nil || o.gen != h.k.gen {
		o = &ownFences{gen: h.k.gen}
		if k.own == nil {
			k.own = make(map[*host]*ownFences)
		}
		k.own[h.k.h] = o
	}
	return &o.fenced
}

// orders returns the stores with whose fences the fences of a hold at s are compared: for a pair,
// both of its stores. In a move from one store to another all fences of a key are compared.
func (w *World) orders(s *simStore) []*simStore {
	if w.p.Move {
		return w.stages[:1]
	}
	return s.leaves
}

// fencesOf returns the records of fences with which the fence of h is compared.
func (k *key) fencesOf(h *hold) (all []*fenced) {
	for _, s := range h.c.w.orders(h.at) {
		f := k.fenced[s]
		if f == nil {
			f = new(fenced)
			if k.fenced == nil {
				k.fenced = make(map[*simStore]*fenced)
			}
			k.fenced[s] = f
		}
		all = append(all, f)
	}
	return all
}

func (w *World) key(name string) *key {
	if k := w.byName[name]; k != nil {
		return k
	}
	w.fail("protocol", name, "a key that nobody uses")
	return nil
}

// began records a new hold, when its client reads the grant.
func (w *World) began(h *hold) {
	k := h.key
	w.begun++
	h.begun = w.begun
	w.note(kindHold, k, uint64(h.c.id), h.fence)
	w.say(k, "client %d holds: owner %d mode %d fence %d·%d valid for %d ms, end %d", h.c.id, h.owner,
		h.mode, h.fence>>10, h.fence&1023, h.valid-h.c.clock()/ms, h.end)
	if (h.fence == 0) != h.degraded || h.degraded && !w.p.Local || h.fence >= 1<<63 {
		w.fail("fence", k.name, "fence %d, degraded %v", h.fence, h.degraded)
	}
	if h.degraded {
		w.counts.Tallies[degraded]++
	}
	if !h.believed() {
		w.counts.Tallies[lateGrants]++
		return
	}
	k.holds = append(k.holds, h)
	w.meets(h)
	w.meetsKept(h)
	w.ordered(h)
}

// ordered checks rule 4: an exclusive holder's fence is greater than the fences of all earlier
// holders, and a reader's is greater than the fences of all earlier exclusive holders.
func (w *World) ordered(h *hold) {
	k := h.key
	if h.degraded {
		return // it has none
	}
	if k.permits > 0 {
		w.unique(h)
		return
	}
	for _, f := range k.fencesOf(h) {
		if f.moves(h) {
			w.counts.Tallies[movedHolds]++
		}
		w.rises(f, h, waives, waivedFence)
	}
	own := k.ownFencesOf(h)
	if own.moves(h) && h.at.rebase {
		w.counts.Tallies[carriedFloors]++
	}
	// A client that reads late can read the grant of a lost hold after later grants.
	w.rises(own, h, func(h, o *hold) bool { return !h.at.rebase || waives(h, o) }, ownOrder)
}

// moves records the latest hold, and reports whether the one before it was at another store.
func (f *fenced) moves(h *hold) bool {
	was := f.latest
	f.latest = h
	return was != nil && was.at != h.at
}

// rises compares the fence of a hold with the fences that have been seen. If waived returns true
// for an earlier hold, the order is not required, and a violation is counted as a tally.
func (w *World) rises(f *fenced, h *hold, waived func(h, o *hold) bool, as tally) {
	k := h.key
	against := func(o *hold) {
		if o == nil || h.fence > o.fence {
			return
		}
		if waived(h, o) {
			w.counts.Tallies[as]++
			return
		}
		w.fail("fence order", k.name, "client %d holds with fence %d·%d after client %d with %d·%d",
			h.c.id, h.fence>>10, h.fence&1023, o.c.id, o.fence>>10, o.fence&1023)
	}
	against(f.exclusive)
	if h.mode == protocol.Exclusive {
		against(f.shared)
		if f.exclusive == nil || f.exclusive.fence < h.fence {
			f.exclusive = h
		}
	} else if f.shared == nil || f.shared.fence < h.fence {
		f.shared = h
	}
}

// meets checks that no client whom h excludes believes in a hold of the key, too. It is called
// whenever a client begins to believe in a hold. So it finds two holds that overlap when the later
// one begins.
func (w *World) meets(h *hold) {
	if !h.believed() {
		return
	}
	k := h.key
	k.holds = slices.DeleteFunc(k.holds, func(o *hold) bool { return o.over && o != h })
	if k.permits > 0 {
		w.checkPermits(k)
		return
	}
	for _, o := range k.holds {
		if o == h || h.mode == protocol.Shared && o.mode == protocol.Shared || !o.believed() {
			continue
		}
		if h.apart(o) {
			w.counts.Tallies[apart]++
			continue
		}
		if waives(o, h) || waives(h, o) {
			w.counts.Tallies[waivedOverlap]++
			continue
		}
		w.fail("two holders", k.name, "client %d (owner %d, mode %d, fence %d·%d, %d ms left) and client %d (owner %d, mode %d, fence %d·%d, %d ms left)",
			o.c.id, o.owner, o.mode, o.fence>>10, o.fence&1023, o.valid-o.c.clock()/ms,
			h.c.id, h.owner, h.mode, h.fence>>10, h.fence&1023, h.valid-h.c.clock()/ms)
	}
	if f := k.foreign; f != nil && f.key == k && f.believes() {
		w.meetsForeign(f, h)
	}
}

// revive records that the daemon has extended a validity that had run out. It may do so if no other
// client has held the key in between.
func (w *World) revive(h *hold) {
	if !h.believed() {
		return
	}
	w.counts.Tallies[revived]++
	if !slices.Contains(h.key.holds, h) {
		h.key.holds = append(h.key.holds, h)
	}
	w.meets(h)
}

// over records that a client no longer believes in a hold.
func (w *World) over(h *hold) {
	if h.over {
		return
	}
	if h.c.clock() >= h.valid*ms {
		w.counts.Tallies[lapsed]++
	}
	h.over = true
	w.note(kindGone, h.key, uint64(h.c.id), h.fence)
	w.say(h.key, "client %d is done with fence %d·%d", h.c.id, h.fence>>10, h.fence&1023)
}

// write has a holder write to the resource behind the lock, which checks fences. The write may take
// its time.
func (w *World) write(h *hold) {
	delay := w.skewed(5 * ms)
	if w.chance(50) {
		delay = w.skewed(3 * sec)
	}
	w.after(delay, func() { w.written(h) })
}

// written handles a write that reaches the resource. The resource takes no write with a smaller
// fence than it has seen. So no write of an earlier holder may take effect after a write of a later
// holder, and no write of the present holder may be refused.
func (w *World) written(h *hold) {
	k := h.key
	if h.degraded {
		return // a resource that checks fences does not take a write without one
	}
	all := k.fencesOf(h)
	for _, f := range all {
		if o := f.writer; h.fence < f.resource {
			w.counts.Tallies[fenceRefused]++
			if h.believed() && h.mode == protocol.Exclusive && !waives(h, o) {
				w.fail("fenced write", k.name, "the present holder's fence %d is refused: client %d wrote with %d", h.fence, o.c.id, f.resource)
			}
			return
		}
	}
	for _, f := range all {
		w.takes(f, h)
	}
	w.counts.Tallies[fenceWrites]++
}

// takes handles a write that the resource does not refuse.
func (w *World) takes(f *fenced, h *hold) {
	k, o := h.key, f.writer
	if o != nil && h.begun < o.begun && !waives(h, o) && !waives(o, h) {
		w.fail("stale write", k.name, "client %d's write with fence %d·%d is taken after a later holder's, client %d with %d·%d",
			h.c.id, h.fence>>10, h.fence&1023, o.c.id, o.fence>>10, o.fence&1023)
	}
	f.resource, f.writer = h.fence, h
}

// lostCheck checks that a hold was lost for a valid reason.
func (w *World) lostCheck(h *hold, why protocol.Reason) {
	switch why {
	case protocol.LostTooLong:
		if w.p.MaxHold == 0 || h.end == 0 {
			w.fail("lost", h.key.name, "fence %d has ended as held for too long", h.fence)
		}
	case protocol.LostFixed:
		if h.end == 0 {
			w.fail("lost", h.key.name, "fence %d was watched and has ended as fixed", h.fence)
		}
	case protocol.LostExpired, protocol.LostGone, protocol.LostSession:
		if w.p.Calm {
			w.fail("lost", h.key.name, "fence %d of client %d was lost (%v) though nothing was wrong",
				h.fence, h.c.id, why)
		}
	case protocol.LostForced: // see client.readForced
	case protocol.LostSilent: // see wasSilent
		if w.p.Calm {
			w.fail("lost", h.key.name, "fence %d of client %d was lost as it was silent, and it never is",
				h.fence, h.c.id)
		}
	default:
		w.fail("lost", h.key.name, "reason %d", why)
	}
}

// granted is a grant that the present step has sent.
type granted struct {
	k     *conn
	q     *request
	key   *key
	fence uint64
}

// replying checks a reply when the daemon sends it. The daemon's own rules have to hold at that
// moment, whatever happens to the reply afterwards.
func (w *World) replying(k *conn, q *request, m protocol.Message) {
	h := k.h
	if q.op == protocol.OpAcquire {
		h.waits[q.key] = slices.DeleteFunc(h.waits[q.key], func(o *request) bool { return o == q })
	}
	if q.op == protocol.OpAcquireAny {
		w.replyingAny(k, q, m)
		return
	}
	if m.Code != protocol.OK {
		return
	}
	switch q.op {
	case protocol.OpAcquire, protocol.OpRenew, protocol.OpDowngrade:
		g, err := m.Grant()
		if err != nil {
			w.fail("protocol", q.keyName(), "grant: %v", err)
			return
		}
		w.inTime(k, q, q.key, &g)
		if q.op == protocol.OpAcquire {
			w.mayHave(k, q.key, &g)
			q.at, _ = h.where(q.key, g.Fence)
		}
		if q.op == protocol.OpAcquire {
			h.promises(k, q, &g)
		}
		if q.op == protocol.OpAcquire && g.Count == 1 {
			h.grants = append(h.grants, granted{k, q, q.key, g.Fence})
		}
	case protocol.OpForceUnlock:
		if n, err := m.Number(); err == nil {
			h.unlocked(q.key, int(n))
		}
	case protocol.OpAcquireMany:
		gs, err := m.Grants()
		if err != nil || len(gs) != len(q.keys) {
			w.fail("protocol", "", "%d grants for %d keys: %v", len(gs), len(q.keys), err)
			return
		}
		for n := range gs {
			w.inTime(k, q, q.keys[n], &gs[n])
			w.mayHave(k, q.keys[n], &gs[n])
		}
	}
}

// mayHave checks that the configuration which the host follows now lets the client have the key.
func (w *World) mayHave(on *conn, k *key, g *protocol.Grant) {
	if on.stuck {
		return // the grant has waited in the outbox: the configuration was another
	}
	ns := on.h.conf.of(k.name)
	if !on.h.allows(k.name, on.c.uid) {
		w.fail("access", k.name, "client %d of user %d is granted fence %d, and namespace %q is for %v",
			on.c.id, on.c.uid, g.Fence, ns.Prefix, ns.Users)
	}
	if g.Flags&protocol.GrantDegraded != 0 && g.Count == 1 && !on.h.mayDegrade(k.name) {
		w.fail("access", k.name, "client %d is granted a degraded hold, and namespace %q does not allow it", on.c.id, ns.Prefix)
	}
}

// pushing checks a push when the daemon sends it.
func (w *World) pushing(k *conn, m protocol.Message) {
	if m.Event == protocol.EventKeepalive && k.asked == 0 {
		if k.asked = w.now; k.h.steps != nil {
			k.asked = k.h.steps.since // when it can have been decided
		}
	}
	if m.Event != protocol.EventLost {
		return
	}
	name, owner, fence, why, err := m.Lost()
	if err != nil {
		return
	}
	if why == protocol.LostSilent {
		w.wasSilent(k, name)
	}
	if k.c.k != k {
		return
	}
	if h := k.c.known[grantID{w.key(name), owner, fence}]; h != nil {
		h.lossSent = true
	}
}

// inTime checks rule 3 at the daemon: no grant is sent past its deadline, and no handoff gives less
// than a third of the TTL.
func (w *World) inTime(on *conn, q *request, k *key, g *protocol.Grant) {
	h := on.h
	if h.stale != 0 || on.stuck {
		return // the daemon could not know how late the client gets it
	}
	until := g.Deadline
	if g.End != 0 {
		until = min(until, g.End)
	}
	if now := h.decided() / ms; int64(until) < now {
		w.fail("past the deadline", k.name, "fence %d·%d is granted %d ms past its deadline", g.Fence>>10,
			g.Fence&1023, now-int64(until))
	}
	if q.asksOnly(k) && g.Count == 1 && q.fixed {
		w.lastsLongEnough(h, q, k, g)
	}
	if !q.asksOnly(k) || g.Count > 1 || g.Fence&511 == 0 { // the bit above is a permit's
		return
	}
	w.counts.Tallies[handoffs]++
	h.bounded(k)
	// Nobody held the key, or the request would have had to wait.
	if q.came == w.now && q.mode == protocol.Exclusive {
		w.counts.Tallies[lingered]++
	}
	at, _ := h.where(k, g.Fence)
	if g.Fence&511 == 511 && !at.rebase {
		w.counts.Tallies[usedUp]++
	}
	ttl := q.ttl
	if w.p.Heartbeat > 0 {
		ttl = min(ttl, max(0, w.p.Heartbeat-(w.now-on.heard))/ms)
	}
	if at.kind != likeRedis {
		ttl = min(ttl, w.p.Session/ms)
	}
	if w.p.MaxHold > 0 {
		ttl = min(ttl, w.p.MaxHold/ms)
	}
	if left := int64(until) - h.decided()/ms; left < ttl/3-2 {
		w.fail("a third of the TTL", k.name, "a handoff of fence %d·%d gives %d ms of %d", g.Fence>>10,
			g.Fence&1023, left, ttl)
	}
}

// lastsLongEnough checks that a fixed hold lasts for the TTL that its owner asked for. It may end
// with a lease that was requested with that TTL before the owner asked.
func (w *World) lastsLongEnough(h *host, q *request, k *key, g *protocol.Grant) {
	if w.p.MaxHold > 0 || h.frozenSoFar() > 0 { // a frozen host reads answers late
		return
	}
	w.counts.Tallies[fixedGrants]++
	least := (cache.LeaseDeadline(q.cameAt, q.ttl*ms) - w.p.Timeout) / ms
	if end := int64(g.End); end < least {
		w.fail("fixed", k.name, "fence %d·%d ends %d ms too early for a TTL of %d ms", g.Fence>>10,
			g.Fence&1023, least-end, q.ttl)
	}
}

// checkOrder checks, after each step of a host, that no request was granted before an earlier
// waiter of the host.
func (w *World) checkOrder(h *host) {
	for _, g := range h.grants {
		w.overtaken(h, g)
		for _, q := range h.waits[g.key] {
			again := g.key.permits == 0 && q.k == g.k && q.owner == g.q.owner
			if q.seq < g.q.seq && (q.mode != protocol.Shared || g.q.mode != protocol.Shared) && !again &&
				q.k.c.k == q.k && !q.k.unwritten(q) {
				w.fail("order", g.key.name, "client %d's %d (mode %d) was granted before client %d's %d (mode %d), which came first",
					g.k.c.id, g.q.id, g.q.mode, q.k.c.id, q.id, q.mode)
			}
		}
	}
	h.grants = h.grants[:0]
}
