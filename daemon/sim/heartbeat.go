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
