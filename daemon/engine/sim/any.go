package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file has acquires of one of several keys. A client gets one hold, like any other hold. Two
// more rules are checked. No waiter of the host is overtaken by such an acquire, and no other
// overtakes it. A try is not busy if one of its keys was free throughout.

// anyState is what is known of an acquire of one of several keys.
type anyState struct {
	free   []*key // the keys that were free when the request arrived
	queued int    // host.seq when it was first in the queues of all keys; 0 if it never was
}

// asksOnly reports whether q asks for a hold of k and for no other hold together with it.
func (q *request) asksOnly(k *key) bool {
	return q.op == protocol.OpAcquire && q.key == k ||
		q.op == protocol.OpAcquireAny && slices.Contains(q.keys, k)
}

// acquires reports whether q is an acquire of any kind.
func (q *request) acquires() bool {
	return q.op == protocol.OpAcquire || len(q.keys) > 0
}

func (c *client) acquireAny() {
	w := c.w
	q := &request{op: protocol.OpAcquireAny, owner: uint64(w.pick(w.p.Owners))}
	p := &protocol.Request{Owner: q.owner}
	for _, k := range w.keys {
		if w.chance(700) && !(w.chaining && k == w.keys[0]) {
			q.keys = append(q.keys, k)
			p.Keys = append(p.Keys, []byte(k.name))
		}
	}
	if len(q.keys) > 0 {
		c.terms(q, p)
		c.send(q, p)
	}
}

func (c *client) grantedAny(q *request, m protocol.Message) error {
	g, index, err := m.GrantOf()
	if err != nil {
		return err
	}
	c.w.counts.Tallies[anyGrants]++
	c.granted(q, q.keys[index], &g)
	return nil
}

// names reports whether q is about k.
func (q *request) names(k *key) bool {
	return q.key == k || slices.Contains(q.keys, k) ||
		slices.ContainsFunc(q.holds, func(h *hold) bool { return h != nil && h.key == k })
}

// arrivesAny records the arrival of a request at the daemon.
func (k *conn) arrivesAny(q *request) {
	h := k.h
	for _, key := range h.w.everything {
		if q.names(key) {
			h.lastAbout[key] = q
		}
	}
	if q.op != protocol.OpAcquireAny || k.unresponsive || k.ended {
		return
	}
	h.seq++
	q.k, q.seq, q.came, q.cameAt = k, h.seq, h.w.now, h.clock()
	h.anys = append(h.anys, q)
	for _, key := range q.keys {
		if h.untouched(key, q) {
			q.any.free = append(q.any.free, key)
		}
	}
}

// uses records that a store carries out an op of a host.
func (k *key) uses(h *host) {
	if k.used == nil {
		k.used = make(map[*host]int64)
	}
	k.used[h] = h.w.now
}

// untouched reports whether no daemon has anything to do with k, apart from the request q. It
// returns false if it cannot be sure.
func (h *host) untouched(k *key, q *request) bool {
	w := h.w
	if w.p.Local || w.p.Foreign > 0 { // holds and holders that no store knows
		return false
	}
	for _, o := range h.conns {
		if o.c.k != o || slices.ContainsFunc(o.calls, func(r *request) bool {
			return r != q && r.names(k)
		}) || len(o.quiet) > 0 {
			return false
		}
	}
	for _, s := range w.stores {
		for _, leaf := range s.leaves {
			if !leaf.isFree(k) {
				return false
			}
		}
	}
	for _, l := range h.links {
		if _, held := l.session.held[k.name]; held || l.s.kind == likeEmbedded &&
			(l.grace() || l.leftBy(k.name, protocol.Exclusive) > 0) {
			return false
		}
	}
	return true
}

// isFree reports whether the store has no lease and no waiter for a key.
func (s *simStore) isFree(k *key) bool {
	switch s.kind {
	case likeRedis:
		at, now := s.redis.keys[k.name], s.clock()/ms
		return at == nil || (at.kind == keyFree || now > at.exp) &&
			(len(at.queue) == 0 || now > at.queExp)
	case likeEtcd:
		return len(s.etcd.keys[k.name]) == 0
	}
	return true
}

// replyingAny checks a reply to an acquire of one of several keys when the daemon sends it.
func (w *World) replyingAny(k *conn, q *request, m protocol.Message) {
	h := k.h
	h.anys = slices.DeleteFunc(h.anys, func(o *request) bool { return o == q })
	switch m.Code {
	case protocol.OK:
		g, index, err := m.GrantOf()
		if err != nil || index >= uint64(len(q.keys)) {
			w.fail("protocol", "", "grant of key %d of %d: %v", index, len(q.keys), err)
			return
		}
		key := q.keys[index]
		w.inTime(k, q, key, &g)
		w.mayHave(k, key, &g)
		q.at, _ = h.where(key, g.Fence)
		if g.Count == 1 {
			h.grants = append(h.grants, granted{k, q, key, g.Fence})
		}
	case protocol.Busy:
		w.counts.Tallies[anyBusy]++
		for _, key := range q.any.free {
			w.notBusy(h, q, key)
		}
	}
}

// notBusy checks that a key of a request that is answered busy has been used since its arrival.
func (w *World) notBusy(h *host, q *request, k *key) {
	used := h.lastAbout[k] != q || !h.untouched(k, q)
	for o, at := range k.used {
		used = used || o != h && at >= q.came
	}
	if !used {
		w.fail("busy", k.name, "client %d's %d is busy, and the key was free throughout", q.k.c.id, q.id)
	}
}

// noteQueued records which requests are in all their queues now.
func (h *host) noteQueued() {
	for _, q := range h.anys {
		if q.any.queued == 0 && q.k.s != nil && q.k.s.Queues(q.id) {
			q.any.queued = h.seq
			h.w.counts.Tallies[anyWaits]++
		}
	}
}

// overtaken checks that no request which waits for one of several keys was in the queue of the key
// before the request that has got it.
func (w *World) overtaken(h *host, g granted) {
	for _, q := range h.anys {
		again := q.k == g.k && q.owner == g.q.owner
		if q.any.queued == 0 || q.any.queued >= g.q.seq || again || !slices.Contains(q.keys, g.key) ||
			q.mode == protocol.Shared && g.q.mode == protocol.Shared ||
			q.k.c.k != q.k || !q.k.s.Queues(q.id) {
			continue
		}
		w.fail("order", g.key.name, "client %d's %d (mode %d) was granted before client %d's %d (mode %d), which waited for one of several keys",
			g.k.c.id, g.q.id, g.q.mode, q.k.c.id, q.id, q.mode)
	}
}

// hasNothing checks, when a client has released everything, that its session has nothing either.
func (c *client) hasNothing() {
	if c.k == nil || c.k.s == nil || c.k.ended || len(c.holds) > 0 || c.w.p.Any == 0 {
		return
	}
	if holds, waits := c.k.s.Counts(); holds != 0 || waits != 0 {
		c.w.fail("nothing left", "", "client %d has released everything, and its session has %d holds and %d waiters",
			c.id, holds, waits)
	}
}
