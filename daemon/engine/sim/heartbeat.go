package sim

import (
	"math/rand/v2"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file has heartbeats: regular messages that a namespace may require from its holders. Clients
// here answer keepalives with pings, except while they are silent.

// heartbeat answers a keepalive, if the client is not silent.
func (c *client) heartbeat() {
	w := c.w
	if w.p.Heartbeat == 0 || !c.greeted || c.silent > w.now {
		return
	}
	if !slices.ContainsFunc(c.calls, func(q *request) bool { return q.op == protocol.OpPing }) {
		c.send(&request{op: protocol.OpPing}, &protocol.Request{})
		w.counts.Tallies[heartbeats]++
	}
}

// newStallProfile gives some runs sessions that hold many keys and fall silent. A host is frozen
// when such a silence has lasted too long, so that leases run out at the same moment. There are few
// other faults, because most of them end such holds early. It draws from dice of its own, as
// newPairProfile does.
func newStallProfile(p *Profile, seed uint64) {
	dice := rand.New(rand.NewPCG(seed, 0x7374616c6c))
	if n := dice.Uint64N(3); p.Store != likeRedis || p.Calm || p.Namespaces == 0 || p.Pairs ||
		p.Move || n > 0 {
		return
	}
	p.Stalls, p.Heartbeat, p.Keys, p.Owners, p.OneShard, p.Wakes, p.Survey = true, 6*sec,
		3+int(dice.Uint64N(4)), 3, true, 1, 0
	p.Shared, p.Together, p.Try, p.Fixed, p.Many, p.Hold = 900, 800, 50, 0, 0, 1500*ms
	p.MaxHold, p.Tenure, p.Foreign, p.More = 0, 0, 0, nil
	p.MaxHolds, p.MaxWaits, p.UserHolds, p.UserWaits, p.NamespaceLimit = 1<<40, 1<<40, 0, 0, 0
	p.TTLs = []int64{1000}
	for f := range p.Faults {
		switch fault(f) {
		case hostTakeover, hostReload, hostKill, clientKill, clientLeave, operator, hintLost,
			hintLate, hintDoubled:
		default:
			p.Faults[f] = 0
		}
	}
	p.Faults[clientSilent] = 5 * sec
}

// stall has a client take keys with all its owners and fall silent. Its host is frozen around the
// time when the daemon would end the client's holds, and for longer than their leases last. The
// freeze is too short for the daemon to blame itself for the silence. So the daemon has to end the
// leases and the silent holds at once.
func (c *client) stall() {
	w, k := c.w, c.k
	for range 3 {
		key := w.keys[w.pick(len(w.keys))]
		for owner := range w.p.Owners {
			c.acquire(key, uint64(owner))
		}
	}
	c.silent = w.now + w.p.Heartbeat + w.between(2*sec, 4*sec)
	stands := w.between(sec, w.p.Heartbeat/3)
	var wait func()
	wait = func() {
		if c.k != k || k.s == nil || c.silent <= w.now || !c.h.up || w.calm {
			return
		}
		due := max(k.heard, c.h.began[k.s.ID()]) + w.p.Heartbeat
		if due-w.now > stands {
			w.at(due-w.between(0, stands), wait)
			return
		}
		w.counts.Tallies[stalls]++
		c.h.freeze(stands)
	}
	w.after(sec, wait)
}

// silentSlack is how late a daemon may end the holds of a silent client.
const silentSlack = 5 * sec

// keepsSilent checks that no silent client keeps a hold where heartbeats are required.
func (h *host) keepsSilent() {
	w := h.w
	if !h.up || h.passing || w.now < h.frozen+silentSlack || w.p.Faults[hostLag] > 0 {
		return
	}
	for id := range h.audit {
		k, ns := h.connOf(id.session), h.conf.of(id.key)
		if k == nil || k.killed || k.pacing.delayed || ns.Heartbeat == 0 {
			continue
		}
		since := max(k.heard, h.began[id.session])
		if at, ok := h.strict[id.key]; ok {
			since = max(since, at+w.longest())
		}
		quiet := w.now - since - (h.frozenSoFar() - k.heardFrozen)
		if quiet > int64(ns.Heartbeat)+silentSlack {
			w.fail("silent", id.key, "client %d still holds fence %d·%d, %d ms after it sent something, and %v are required", k.c.id, id.fence>>10, id.fence&1023, quiet/ms, ns.Heartbeat)
			return
		}
	}
}

// longest returns the longest validity that a lease may have.
func (w *World) longest() int64 {
	longest := max(w.p.Session, w.p.longestKeep())
	for _, ttl := range w.p.TTLs {
		longest = max(longest, ttl*ms)
	}
	return longest
}

// wasSilent checks that a client whose hold was lost as silent has indeed been silent. The client
// must also have had a keepalive to answer, and a third of the heartbeat for that. A daemon that
// works with an old reading of the clock may be wrong.
func (w *World) wasSilent(k *conn, key string) {
	if w.p.Heartbeat == 0 {
		w.fail("silent", key, "client %d was not asked for heartbeats", k.c.id)
		return
	}
	if k.stuck || w.p.Faults[hostLag] > 0 {
		return
	}
	if k.pacing.delayed {
		w.fail("silent", key, "client %d has lost a hold as silent, and is not read", k.c.id)
	}
	if st := k.h.steps; st != nil && k.heard >= st.since {
		return // the daemon may have decided it before it read the message
	}
	if quiet := w.now - k.heard; quiet < w.p.Heartbeat*98/100 {
		w.fail("silent", key, "client %d sent something %d ms ago, and has lost a hold as silent for %d ms", k.c.id, quiet/ms, w.p.Heartbeat/ms)
	}
	if k.asked == 0 {
		w.fail("silent", key, "client %d has lost a hold as silent, and has answered all keepalives",
			k.c.id)
	} else if had := w.now - k.asked; had < w.p.Heartbeat/3*98/100 {
		w.fail("silent", key, "client %d has lost a hold as silent, %d ms after the keepalive that it has not answered", k.c.id, had/ms)
	}
}
