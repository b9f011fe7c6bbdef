package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file has what clients do: they draw requests at random, and plan the end of each hold.

// patience bounds how long an answer may take beyond the requested wait. Pauses of the host and of
// the client do not count.
const patience = 30 * sec

// act has the client do one random thing, and schedules the next one.
func (c *client) act() {
	w := c.w
	if w.calm {
		return
	}
	if w.load != nil {
		c.begin()
		return
	}
	c.after(w.skewed(w.p.Act), c.act)
	// Some clients do not wait for the welcome.
	if c.k == nil || c.silent > w.now || !c.greeted && w.chance(900) {
		return
	}
	if w.chance(w.p.Odd) {
		c.odd()
		return
	}
	if len(c.holds)+len(c.calls) > 6 {
		return
	}
	if w.chance(w.p.Many) {
		c.acquireMany()
		return
	}
	if w.chance(w.p.Any) {
		c.acquireAny()
		return
	}
	keys := w.keys
	if len(w.sems) > 0 && w.chance(w.p.Permits) {
		keys = w.sems
	}
	k, first, n := keys[w.pick(len(keys))], w.pick(w.p.Owners), 1
	if w.chance(w.p.Together) {
		n = w.p.Owners
	}
	for i := range n {
		c.acquire(k, uint64((first+i)%w.p.Owners))
	}
}

// terms draws the fields of an acquire besides its keys.
func (c *client) terms(q *request, p *protocol.Request) {
	w := c.w
	if w.chance(w.p.Shared) {
		q.mode = protocol.Shared
	}
	switch {
	case w.chance(w.p.Try):
	case w.chance(250):
		q.wait = protocol.WaitAlways
		q.late = 1 << 60
	default:
		q.wait = w.between(1, 8000)
	}
	q.ttl = w.p.TTLs[w.pick(len(w.p.TTLs))]
	q.fixed = w.chance(w.p.Fixed)
	p.Mode, p.Wait, p.TTL = q.mode, q.wait, uint64(q.ttl)
	if q.ttl == w.p.TTLs[0] && w.chance(500) {
		p.TTL = 0 // the default
	}
	if q.fixed {
		p.Flags = protocol.FlagFixed
	}
}

func (c *client) acquire(k *key, owner uint64) {
	if c.w.chaining && k == c.w.keys[0] || c.waiting(k, owner) != nil && c.w.chance(700) {
		return
	}
	q := &request{op: protocol.OpAcquire, key: k, owner: owner}
	p := &protocol.Request{Key: []byte(k.name), Owner: owner}
	c.terms(q, p)
	c.keep(q, p)
	if k.permits > 0 {
		q.mode = protocol.Permit
		p.Mode, p.Permits = q.mode, uint64(k.permits)
		if c.w.p.Limits && c.w.chance(300) {
			p.Permits = uint64(1 + c.w.pick(k.permits))
		}
		if int(p.Permits) < k.permits {
			c.w.counts.Tallies[lowerLimits]++
		}
	}
	c.send(q, p)
}

func (c *client) acquireMany() {
	w := c.w
	q := &request{op: protocol.OpAcquireMany, owner: uint64(w.pick(w.p.Owners))}
	if w.p.ManyApart {
		q.owner = 1000 + c.nextID
	}
	p := &protocol.Request{Owner: q.owner}
	for _, k := range w.keys {
		if w.chance(600) && !(w.chaining && k == w.keys[0]) {
			q.keys = append(q.keys, k)
		}
	}
	if len(q.keys) == 0 {
		return
	}
	for i := range q.keys { // in any order
		j := w.pick(i + 1)
		q.keys[i], q.keys[j] = q.keys[j], q.keys[i]
	}
	for _, k := range q.keys {
		p.Keys = append(p.Keys, []byte(k.name))
	}
	c.terms(q, p)
	c.send(q, p)
}

// plan decides what the client does with a hold that has just been granted.
func (c *client) plan(h *hold, q *request) {
	w := c.w
	if w.load != nil {
		w.load.granted(c, h, q)
		return
	}
	d := w.skewed(w.p.Hold)
	switch {
	case q.dropped || w.calm:
		d = 0
	case c.chain > 0 && h.key == w.keys[0]:
		d = w.between(0, 200*us)
	case w.chance(40):
		d = w.skewed(2 * h.ttl * ms) // long enough to need renewing
	}
	k := c.k
	var end func()
	end = func() {
		switch {
		case c.k != k || h.over || h.count <= 0:
		case c.silent > w.now && !w.calm:
			c.at(c.silent, c.gen, end)
		default:
			c.release(h)
		}
	}
	c.after(d, end)
	if h.mode == protocol.Exclusive && w.chance(400) {
		c.after(w.between(0, d+1), func() {
			if h.believed() {
				w.write(h)
			}
		})
	}
}

// release releases one count of a hold, or all. From then on the client does not believe in what it
// has released.
func (c *client) release(h *hold) {
	w := c.w
	for _, q := range c.calls { // the release ends renewals of the hold that are still waited for
		if q.op == protocol.OpRenew && slices.Contains(q.holds, h) && c.late(q) {
			return
		}
	}
	q := &request{op: protocol.OpRelease, key: h.key, owner: h.owner, holds: []*hold{h},
		all: w.chance(200)}
	p := &protocol.Request{Key: []byte(h.key.name), Owner: h.owner, Fence: h.fence}
	if q.all {
		p.Flags |= protocol.FlagAll
	}
	if w.chance(250) {
		p.Flags |= protocol.FlagAsync
	}
	if w.p.Keep > 0 && (w.chance(300) || w.calm) {
		p.Flags |= protocol.FlagNow
		if x := c.keptOf(h); x != nil {
			x.mayEnd = true
		}
	}
	// If this releases all counts and no other request about the hold is in progress, the hold is
	// over, whatever the answer.
	if q.all && c.waiting(h.key, h.owner) == nil && !c.concerns(h) && w.chance(500) {
		q.quiet = true
		p.Flags |= protocol.FlagQuiet
		w.counts.Tallies[quietReleases]++
	}
	c.givesUp(h, q.all)
	if q.quiet {
		c.holds = slices.DeleteFunc(c.holds, func(o *hold) bool { return o == h })
	}
	c.send(q, p)
}

// concerns reports whether a request about the hold has not been answered.
func (c *client) concerns(h *hold) bool {
	return slices.ContainsFunc(c.calls, func(q *request) bool { return slices.Contains(q.holds, h) })
}

func (c *client) givesUp(h *hold, all bool) {
	h.count--
	if all {
		h.count, h.closed = 0, true
	}
	if h.count <= 0 {
		c.w.over(h)
	}
}

// odd does one of the less common things.
func (c *client) odd() {
	w := c.w
	if w.p.Keep > 0 && w.chance(200) {
		c.releaseDetached()
		return
	}
	var h *hold
	if live := c.live(); len(live) > 0 {
		h = live[w.pick(len(live))]
	}
	switch w.pick(14) {
	case 0, 1:
		c.renew(h)
	case 2, 3:
		if h != nil && h.mode != protocol.Permit {
			c.downgrade(h)
		}
	case 4, 5:
		c.cancel()
	case 6:
		c.inspect(h)
	case 7:
		c.send(&request{op: protocol.OpPing}, &protocol.Request{})
	case 8:
		q := &request{op: protocol.OpList}
		if w.p.Queries && w.chance(500) {
			q.op = protocol.OpStored
		}
		c.send(q, &protocol.Request{Limit: 1 + uint64(w.pick(5))})
	case 9:
		c.staleRelease(h)
	case 10:
		c.releaseMany()
	case 11:
		if h != nil {
			c.acquire(h.key, h.owner) // re-enters it
		}
	case 12:
		c.wrong()
	case 13:
		if w.chance(200) { // rarely, because it ends holds of other clients
			c.forceUnlock()
		}
	}
}

// live returns the holds that the client believes in.
func (c *client) live() []*hold {
	var live []*hold
	for _, h := range c.holds {
		if !h.over {
			live = append(live, h)
		}
	}
	return live
}

func (c *client) renew(h *hold) {
	q := &request{op: protocol.OpRenew}
	p := &protocol.Request{}
	switch {
	case h != nil && c.w.chance(900):
		q.holds = []*hold{h}
		p.Fence = h.fence
	case len(c.fencedOld()) > 0:
		old := c.fencedOld()
		h = old[c.w.pick(len(old))]
		q.holds, q.stale = []*hold{nil}, true
		p.Fence = h.fence
	default:
		return
	}
	q.key, q.owner = h.key, h.owner
	p.Key, p.Owner = []byte(h.key.name), h.owner
	if c.w.chance(500) {
		p.TTL = uint64(c.w.p.TTLs[c.w.pick(len(c.w.p.TTLs))])
	}
	if !c.w.p.Calm || c.w.p.Rate > 0 {
		c.send(q, p)
		return
	}
	q.late = promptly
	again := *q
	c.send(q, p)
	if c.w.chance(700) { // two threads of the client renew at the same moment
		p.TTL = uint64(c.w.p.TTLs[c.w.pick(len(c.w.p.TTLs))])
		c.send(&again, p)
	}
}

// promptly bounds how long the answer to a renewal may take if nothing is wrong.
const promptly = sec

func (c *client) downgrade(h *hold) {
	h.mode = protocol.Shared // other readers may be let in from now on
	if x := c.keptOf(h); x != nil {
		x.as.mode = h.mode
	}
	q := &request{op: protocol.OpDowngrade, key: h.key, owner: h.owner, holds: []*hold{h}}
	c.send(q, &protocol.Request{Key: []byte(h.key.name), Owner: h.owner, Fence: h.fence})
	h.down = q.id
}

func (c *client) cancel() {
	var targets []*request
	for _, q := range c.calls {
		if q.acquires() && !q.dropped {
			targets = append(targets, q)
		}
	}
	if len(targets) == 0 {
		return
	}
	t := targets[c.w.pick(len(targets))]
	t.dropped = true
	k := t.key
	if len(t.keys) > 0 {
		k = t.keys[c.w.pick(len(t.keys))]
	}
	c.send(&request{op: protocol.OpCancel, key: k, target: t},
		&protocol.Request{Target: t.id, Key: []byte(k.name)})
}

func (c *client) inspect(h *hold) {
	q := &request{op: protocol.OpInspect, key: c.w.keys[c.w.pick(len(c.w.keys))]}
	if h != nil && h.believed() {
		q.key, q.holds = h.key, []*hold{h}
	}
	p := &protocol.Request{Key: []byte(q.key.name)}
	if q.key.permits > 0 {
		p.Mode = protocol.Permit
	}
	if q.asksHolders = c.w.chance(500); q.asksHolders {
		p.Flags = protocol.FlagHolders
	}
	c.send(q, p)
}

// fencedOld returns the ended holds that had a fence. Degraded holds have none, so a release of an
// ended one would end a present one of the same owner.
func (c *client) fencedOld() []*hold {
	return slices.DeleteFunc(slices.Clone(c.old), func(o *hold) bool { return o.degraded })
}

// staleRelease sends the release of a finally block that does not know yet that its hold is over.
func (c *client) staleRelease(h *hold) {
	p := &protocol.Request{}
	q := &request{op: protocol.OpRelease, holds: []*hold{nil}}
	old := c.fencedOld()
	switch {
	case len(old) > 0:
		o := old[c.w.pick(len(old))]
		q.key, q.owner, p.Fence = o.key, o.owner, o.fence
	case h != nil && !h.degraded:
		q.key, q.owner, p.Fence = h.key, h.owner, h.fence-1
	default:
		return
	}
	p.Key, p.Owner = []byte(q.key.name), q.owner
	if c.w.chance(300) { // as no client should, but the daemon has to report each
		q.quiet, q.doomed = true, true
		p.Flags = protocol.FlagQuiet
	}
	c.send(q, p)
}

func (c *client) releaseMany() {
	q := &request{op: protocol.OpReleaseMany, owner: uint64(c.w.pick(c.w.p.Owners)),
		all: c.w.chance(300)}
	p := &protocol.Request{Owner: q.owner}
	if q.all {
		p.Flags |= protocol.FlagAll
	}
	if c.w.chance(300) {
		p.Flags |= protocol.FlagAsync
	}
	for _, h := range c.live() {
		if h.owner == q.owner {
			c.givesUp(h, q.all)
			q.holds = append(q.holds, h)
			p.Keys, p.Fences = append(p.Keys, []byte(h.key.name)), append(p.Fences, h.fence)
		}
	}
	if i := slices.IndexFunc(c.old, func(o *hold) bool { return o.owner == q.owner && !o.degraded }); i >= 0 {
		q.holds = append(q.holds, nil)
		p.Keys, p.Fences = append(p.Keys, []byte(c.old[i].key.name)), append(p.Fences, c.old[i].fence)
	}
	if len(q.holds) > 0 {
		c.send(q, p)
	}
}
