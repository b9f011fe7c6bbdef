package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// Heartbeats: a namespace may require a message from its holders at least so often. Clients here answer
// keepalives with pings, unless they are silent for a while.

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

// silentSlack is how late a daemon may be in ending what a silent client holds.
const silentSlack = 5 * sec

// keepsSilent checks that no silent client keeps a hold where heartbeats are required.
func (h *host) keepsSilent() {
	w := h.w
	if !h.up || h.passing || w.now < h.frozen+silentSlack || w.p.Faults[hostLag] > 0 {
		return
	}
	for id := range h.audit {
		k, sp := h.connOf(id.session), h.conf.of(id.key)
		if k == nil || k.killed || sp.Heartbeat == 0 {
			continue
		}
		since := max(k.heard, h.began[id.session])
		if at, ok := h.strict[id.key]; ok {
			since = max(since, at+w.longest())
		}
		if quiet := w.now - since - (h.stood() - k.heardFrost); quiet > int64(sp.Heartbeat)+silentSlack {
			w.fail("silent", id.key, "client %d still holds fence %d·%d, %d ms after it sent something, and %v are required", k.c.id, id.fence>>10, id.fence&1023, quiet/ms, sp.Heartbeat)
			return
		}
	}
}

// longest is the longest validity that a lease may have.
func (w *World) longest() int64 {
	longest := w.p.Session
	for _, ttl := range w.p.TTLs {
		longest = max(longest, ttl*ms)
	}
	return longest
}

// wasSilent checks, when the daemon says that a hold is lost as its client was silent, that it was. The client must
// also have had a keepalive to answer, and a third of the heartbeat for that. A daemon that works with an old
// reading of the clock may be wrong.
func (w *World) wasSilent(k *conn, key string) {
	if w.p.Heartbeat == 0 {
		w.fail("silent", key, "client %d was not asked for heartbeats", k.c.id)
		return
	}
	if k.stuck || w.p.Faults[hostLag] > 0 {
		return
	}
	if quiet := w.now - k.heard; quiet < w.p.Heartbeat*98/100 {
		w.fail("silent", key, "client %d sent something %d ms ago, and has lost a hold as silent for %d ms", k.c.id, quiet/ms, w.p.Heartbeat/ms)
	}
	if k.asked == 0 {
		w.fail("silent", key, "client %d has lost a hold as silent, and has answered all keepalives", k.c.id)
	} else if had := w.now - k.asked; had < w.p.Heartbeat/3*98/100 {
		w.fail("silent", key, "client %d has lost a hold as silent, %d ms after the keepalive that it has not answered", k.c.id, had/ms)
	}
}
