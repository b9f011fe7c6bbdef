package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// Heartbeats: a namespace may require that its holders are heard of. Clients here send a ping in time
// while they hold something, unless they are silent for a while.

// heartbeat sends one, if the client is not silent.
func (c *client) heartbeat() {
	w := c.w
	if w.calm {
		return
	}
	w.after(w.p.Heartbeat/4, c.heartbeat)
	if c.k == nil || !c.greeted || c.paused > w.now || c.silent > w.now || len(c.holds) == 0 {
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

// wasSilent checks, when the daemon says that a hold is lost as its client was silent, that it was. A
// daemon that works with an old reading of the clock may be wrong.
func (w *World) wasSilent(k *conn, key string) {
	if w.p.Heartbeat == 0 {
		w.fail("silent", key, "client %d was not asked for heartbeats", k.c.id)
		return
	}
	if quiet := w.now - k.heard; !k.stuck && quiet < w.p.Heartbeat*98/100 && w.p.Faults[hostLag] == 0 {
		w.fail("silent", key, "client %d sent something %d ms ago, and has lost a hold as silent for %d ms", k.c.id, quiet/ms, w.p.Heartbeat/ms)
	}
}
