package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// This file has the operator, who unlocks by force.

// force ends all holds of a key on this host, or one of them.
func (h *host) force() {
	w := h.w
	k := h.annoying()
	fence := uint64(0)
	if n := len(k.holds); n > 0 && w.chance(500) {
		fence = k.holds[w.pick(n)].fence
	}
	h.after(0, func() {
		ended, _ := h.eng.Force(k.name, k.permits > 0, fence, engine.Unknown)
		h.forced[k.name] -= len(ended)
		if len(ended) == 0 {
			return
		}
		w.counts.Faults[operator]++
		w.note(kindFault, k, uint64(operator), uint64(len(ended)))
		w.say(k, "FORCED on host %d: %d holds, asked for fence %d·%d", h.id, len(ended),
			fence>>10, fence&1023)
		for _, o := range ended {
			if fence != 0 && o.Fence != fence {
				w.fail("forced", k.name, "fence %d was ended, and only %d was to be", o.Fence, fence)
			}
		}
	})
}

// Unlocked records that an operator has ended a hold by force.
func (o observer) Unlocked(u *cache.Held, _ engine.Peer) {
	h, k := o.h, o.h.w.key(u.Key)
	h.forced[u.Key]++
	if c := h.connOf(u.Session.ID); c != nil { // else the daemon is going, and has closed its side
		c.forced[grantID{k, u.Owner, u.Fence}]++
	}
}

// UnlockDenied checks that a client may not unlock by force.
func (o observer) UnlockDenied(by engine.Peer) {
	if isOperator(by.UID) {
		o.h.w.fail("forced", "", "user %d may unlock by force, and is denied", by.UID)
	}
}

// operators may unlock by force: some clients of a world with several users, and all of a world in
// which users do not matter.
var operators = engine.Access{Users: []int{-1, 0}}

func isOperator(uid int) bool { return slices.Contains(operators.Users, uid) }

// forceUnlock has a client unlock a key by force.
func (c *client) forceUnlock() {
	w := c.w
	q := &request{op: protocol.OpForceUnlock, key: c.h.annoying()}
	p := &protocol.Request{Key: []byte(q.key.name)}
	if q.key.permits > 0 {
		p.Mode = protocol.Permit
	}
	if n := len(q.key.holds); n > 0 && w.chance(500) {
		p.Fence = q.key.holds[w.pick(n)].fence
	}
	c.send(q, p)
}

// unlocked checks the answer to a force-unlock when the daemon sends it.
func (h *host) unlocked(k *key, ended int) {
	if h.forced[k.name] -= ended; h.forced[k.name] < 0 {
		h.w.fail("forced", k.name, "%d holds more are said to have ended by force than have",
			-h.forced[k.name])
	}
}

// annoying returns a key that an operator might unlock. In most cases it is a key that a client of
// this host holds, preferably a paused one.
func (h *host) annoying() *key {
	w := h.w
	best, most := w.everything[w.pick(len(w.everything))], 0
	if w.chance(100) {
		return best
	}
	for _, k := range w.everything {
		for _, o := range k.holds {
			n := 0
			if o.c.h == h && o.believed() {
				n = 1
				if o.c.paused > w.now || o.c.unresponsive > w.now {
					n = 2
				}
			}
			if n > most {
				best, most = k, n
			}
		}
	}
	return best
}

// view has an operator view the daemon. The view has to show exactly the holds that the daemon has
// granted and not ended.
func (h *host) view() {
	w := h.w
	// During a reload, the audit log may be behind.
	if !h.up || h.passing || h.steps != nil || w.now < h.frozen {
		return
	}
	var v engine.View
	h.eng.View(engine.ViewQuery{Sort: engine.ViewSorts[w.pick(len(engine.ViewSorts))],
		Desc: w.chance(500), Limit: engine.MaxViewRows}, &v)
	shown := make(map[audited]int)
	for i := range v.Holds {
		if o := &v.Holds[i]; !o.Forced {
			w.counts.Tallies[viewed]++
			shown[audited{o.Session, o.Key, o.Owner, o.Fence}]++
			if o.Detached != (o.Session == 0) {
				w.fail("view", o.Key, "host %d shows fence %d of session %d as detached (%v)", h.id, o.Fence,
					o.Session, o.Detached)
			}
		}
	}
	for id, n := range h.audit {
		if shown[id] != n {
			w.fail("view", id.key, "host %d does not show fence %d of session %d", h.id,
				id.fence, id.session)
		}
		delete(shown, id)
	}
	for id := range shown {
		if id.fence != 0 { // the audit log does not have holds without a fence
			w.fail("view", id.key, "host %d shows fence %d of session %d, which has ended", h.id,
				id.fence, id.session)
		}
	}
}

// readForced is called when a client reads of a forced unlock. Sometimes it acknowledges the loss.
func (c *client) readForced(id grantID) {
	if c.k.forced[id] == 0 {
		c.w.fail("forced", id.key.name, "client %d is told that fence %d was unlocked by force, and nobody did", c.id, id.fence)
		return
	}
	if c.k.forced[id]--; c.k.forced[id] == 0 {
		delete(c.k.forced, id)
	}
	// Without a fence, the release could end a later hold of the owner.
	if id.fence != 0 && c.w.chance(500) {
		c.send(&request{op: protocol.OpRelease, key: id.key, owner: id.owner,
			holds: []*hold{nil}, all: true},
			&protocol.Request{Key: []byte(id.key.name), Owner: id.owner, Fence: id.fence,
				Flags: protocol.FlagAll})
	}
}

// hasBeenTold checks, at the end of a run, that every client was told of its forced unlocks.
func (c *client) hasBeenTold() {
	if c.k == nil || c.w.failure != nil {
		return
	}
	for id := range c.k.forced {
		c.w.fail("forced", id.key.name, "client %d has never been told that fence %d was unlocked by force", c.id, id.fence)
	}
}
