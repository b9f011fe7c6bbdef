package sim

import (
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/locksidecar/locksidecar/protocol"
)

// build makes everything that exists from the beginning.
func (w *World) build() {
	for n := range w.p.Keys {
		w.keys = append(w.keys, &key{name: w.keyName("k", n)})
	}
	for n, permits := range w.p.Semaphores {
		w.sems = append(w.sems, &key{name: w.keyName("s", n), permits: permits,
			fences: make(map[fenceAt]*hold)})
	}
	w.everything = slices.Concat(w.keys, w.sems)
	for n, k := range w.everything {
		k.no, w.byName[k.name] = uint64(n+1), k
	}
	for _, kind := range append([]storeKind{w.p.Store}, w.p.More...) {
		w.stores = append(w.stores, w.newStore(kind))
	}
	switch {
	case w.p.Move:
		w.newMove()
	case w.p.Pairs:
		w.newPairs()
	}
	w.conf = w.firstConf()
	for n := range w.p.Hosts {
		w.hosts = append(w.hosts, w.newHost(n))
	}
	for _, h := range w.hosts {
		for range h.crowd() {
			w.clients = append(w.clients, w.newClient(h, len(w.clients)))
		}
	}
	for n := range w.p.Foreign {
		w.foreign = append(w.foreign, w.newForeigner(n))
	}
	w.startFaults()
	w.after(5*sec, w.audit)
	w.after(paceEvery, w.quicken)
	if w.p.Chain {
		w.after(w.between(20*sec, 60*sec), w.chain)
	}
}

// keyName returns the n-th name of its kind. In some runs all keys are in one shard of the daemon's
// lock table. There, work that one event leaves for the next meets the events of all other keys.
func (w *World) keyName(kind string, n int) string {
	name := fmt.Sprint(kind, n)
	for i := 0; w.p.OneShard && xxhash.Sum64String(name)%64 != 0; i++ {
		name = fmt.Sprintf("%s%d-%d", kind, n, i)
	}
	return name
}

// A chain is a long series of handoffs: more than a base has fences.
const (
	chainLinks  = 1800
	chainOwners = 4 // of each client
	chainTime   = 20 * sec
)

// chain has the clients of the first host hand one key off among themselves. The other hosts leave
// it alone meanwhile.
func (w *World) chain() {
	if w.calm {
		return
	}
	w.chaining = true
	w.say(w.keys[0], "chain begins")
	for _, c := range w.hosts[0].clients() {
		c.chain = chainLinks / w.p.Clients
		for owner := range chainOwners {
			c.link(uint64(100 + owner))
		}
	}
	w.after(chainTime, func() { w.chaining = false })
	w.after(w.between(2*chainTime, 10*chainTime), w.chain)
}

// crowd returns how many clients the host has.
func (h *host) crowd() int {
	if h.id == 0 && h.w.p.Crowd > 0 {
		return h.w.p.Crowd
	}
	return h.w.p.Clients
}

func (h *host) clients() []*client {
	var cs []*client
	for _, c := range h.w.clients {
		if c.h == h {
			cs = append(cs, c)
		}
	}
	return cs
}

// link acquires the key of the chain once more, as soon as it is free.
func (c *client) link(owner uint64) {
	w := c.w
	if !w.chaining || w.calm || c.chain <= 0 {
		return
	}
	if c.k == nil || c.find(w.keys[0], owner) != nil || c.waiting(w.keys[0], owner) != nil {
		c.after(w.between(0, 500*us), func() { c.link(owner) })
		return
	}
	c.chain--
	q := &request{op: protocol.OpAcquire, key: w.keys[0], owner: owner, wait: protocol.WaitAlways,
		late: 1 << 60, ttl: 5000}
	c.send(q, &protocol.Request{Key: []byte(q.key.name), Owner: owner, Wait: q.wait,
		TTL: uint64(q.ttl)})
	c.after(w.between(0, 500*us), func() { c.link(owner) })
}

// audit checks that requests are answered in time.
func (w *World) audit() {
	for _, c := range w.clients {
		for _, q := range c.calls {
			if c.late(q) {
				return
			}
		}
	}
	for _, h := range w.hosts {
		if w.load == nil {
			h.keepsSilent()
			h.noneTooLong()
			h.view()
		}
	}
	w.after(5*sec, w.audit)
}

// late checks that q, which is not answered, need not have been. It reports whether the run has
// failed.
func (c *client) late(q *request) bool {
	w := c.w
	late := w.now - q.sent - (c.frozenSoFar() - q.frozenBefore) - q.late
	if late <= 0 || q.late >= 1<<59 {
		return false
	}
	w.fail("every wait ends", q.keyName(), "client %d's %s %d is %d ms late (wait %d ms)", c.id,
		requestNames[q.op], q.id, late/ms, q.wait)
	return true
}

// finish ends the run. There are no more faults. All clients release their holds and then
// disconnect. After that nothing may be left.
func (w *World) finish() {
	w.calm = true
	keep := w.p.longestKeep() // how long a detached hold may still close its key
	w.say(nil, "THE END begins")
	// A host that is frozen, or a client that is paused, still continues at its own time.
	for _, h := range w.hosts {
		h.midway = 0
	}
	for _, s := range w.sites() {
		s.paused, s.full, s.readOnly = 0, 0, 0
	}
	for _, c := range w.clients {
		c.chain = 0
		for _, q := range c.calls { // a wait without bound has a bound from now on
			q.sent, q.frozenBefore, q.late = w.now, c.frozenSoFar(), 2*patience+keep
		}
		c.after(w.between(0, sec), func() {
			for _, h := range c.live() {
				for !h.over { // each count of it
					c.release(h)
				}
			}
		})
	}
	w.runUntil(w.now + 70*sec + keep)
	for _, c := range w.clients {
		if n := len(c.calls); n > 0 && w.failure == nil {
			w.fail("every wait ends", c.calls[0].keyName(), "client %d's %s %d is not answered at the end",
				c.id, requestNames[c.calls[0].op], c.calls[0].id)
		}
		c.hasBeenTold()
		c.hasNothing()
		c.hasReadFailures()
		c.gen++
		c.close()
	}
	w.runUntil(w.now + 120*sec)
	w.nothingLeft()
}

// nothingLeft checks that the tables, the lanes and the store are empty.
func (w *World) nothingLeft() {
	if w.failure != nil {
		return
	}
	for _, h := range w.hosts {
		if !h.up {
			w.fail("nothing left", "", "host %d is down", h.id)
			return
		}
		if left := h.eng.Residue(); !left.None() {
			w.fail("nothing left", "", "host %d: %v", h.id, left)
		}
		h.auditEnds()
		for _, l := range h.links {
			if l.leaving {
				w.fail("nothing left", "", "host %d: store %s does not leave", h.id, l.name)
			}
			for _, p := range l.pumps {
				if p.idle != w.p.InFlight {
					w.fail("nothing left", "", "host %d: batches in flight to %s", h.id, l.name)
				}
			}
			if n := len(l.session.held) + len(l.session.permits); n > 0 {
				w.fail("nothing left", "", "host %d: %d keys are left in %s", h.id, n, l.name)
			}
		}
	}
	for _, s := range w.stores {
		if n := s.residue(); n > 0 {
			w.fail("nothing left", "", "%d keys are left in %s", n, s.name)
		}
	}
}

// residue returns the number of keys of which the store still has something.
func (s *simStore) residue() (n int) {
	switch s.kind {
	case likeRedis:
		return s.redis.residue()
	case likeEtcd:
		for _, es := range s.etcd.keys {
			n += len(es)
		}
	}
	return n
}

// sites returns every store.
func (w *World) sites() (all []*simStore) {
	for _, s := range w.stores {
		if s.kind != likeEmbedded && s.kind != likeBoth {
			all = append(all, s)
		}
	}
	for _, h := range w.hosts {
		all = append(all, h.embedded)
	}
	return all
}
