package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon"
)

// takeOver has another process take the daemon's place, as the daemon's own takeover does: nothing
// is read from clients, what is on its way to the store comes to its end, and then the next one
// goes on from an image.
func (h *host) takeOver(tries int) {
	h.passing = true
	waiting, flying := h.unit.Main().Depth()
	_, renewing := h.unit.Renewals().Depth()
	switch busy := waiting+flying+renewing > 0; {
	case busy && tries > 0 && !h.draining:
		h.after(200*us, func() { h.takeOver(tries - 1) })
		return
	case !busy && !h.draining:
		h.passOn()
	}
	h.passing = false
	for _, p := range h.pumps {
		for ; p.idle > 0; p.idle-- {
			h.after(h.w.between(0, 50*us), p.work)
		}
	}
	for _, k := range slices.Clone(h.conns) {
		h.after(h.w.between(0, 50*us), k.readable)
	}
}

// passOn replaces the engine.
func (h *host) passOn() {
	w := h.w
	image, sessions, err := h.eng.Image()
	if err != nil {
		w.fail("takeover", "", "image: %v", err)
		return
	}
	old := make(map[*daemon.Session]*conn)
	for _, k := range h.conns {
		if k.s != nil {
			old[k.s] = k
		}
	}
	h.tickAt = cache.Forever
	h.newEngine()
	next, err := h.eng.Take(image)
	if err != nil || len(next) != len(sessions) {
		w.fail("takeover", "", "%d sessions of %d: %v", len(next), len(sessions), err)
		return
	}
	for i, s := range sessions {
		k := old[s]
		if k == nil {
			w.fail("takeover", "", "session %d has no connection", s.ID())
			return
		}
		k.s = next[i]
		k.s.Carry(k)
	}
	if again, _, err := h.eng.Image(); err != nil || string(again) != string(image) {
		w.fail("takeover", "", "the image of what was taken over is another (%v)", err)
	}
	if left := h.eng.Leftovers(); left.Amiss != 0 {
		w.fail("takeover", "", "of what was taken over: %v", left)
	}
	h.eng.Reroute()
	for i, p := range h.pumps {
		p.lane = h.lane(i)
	}
	h.wake(h.clock())
	w.counts.Faults[hostTakeover]++
	w.say(nil, "host %d: another process has taken over %d sessions", h.id, len(sessions))
	if w.p.Store == likeEtcd && !w.p.Calm && w.chance(300) {
		h.bereave()
	}
}

// bereave has the next process go on without the session at the store.
func (h *host) bereave() {
	w := h.w
	h.closeSession()
	w.store.instances++
	h.inst = w.store.instances
	h.session = storeSession{tries: h.session.tries + 1}
	h.eng.Bereave(h.unit)
	h.openSession()
}
