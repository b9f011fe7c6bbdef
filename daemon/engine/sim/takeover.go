package sim

import (
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// takeOver replaces the daemon with another process, as the daemon's own takeover does. The daemon
// stops reading from clients and waits for the requests in flight. Then the successor continues
// from a snapshot. It may do so without the stores that are leaving, as after a restart with an
// edited configuration.
func (h *host) takeOver(tries int, without bool) {
	if h.steps != nil { // the daemon refuses during a reload
		return
	}
	h.passing = true
	for _, k := range h.conns {
		if k.pacing.delayed { // the freeze ends the delay
			k.endDelay()
		}
	}
	leaving := slices.ContainsFunc(h.links, func(l *link) bool { return l.leaving })
	switch busy := h.busy(); {
	case leaving && !without: // the daemon refuses
	case busy && tries > 0 && !h.draining:
		h.after(200*us, func() { h.takeOver(tries-1, without) })
		return
	case !busy && !h.draining:
		c := h.conf
		switch {
		case without && !leaving:
			c = h.edited()
		case !without:
			c = h.successorConf()
		}
		if c != nil {
			h.passOn(c)
		}
	}
	h.passing, h.emptied = false, 0
	if h.stopped {
		h.stopped = false
		h.wake(h.clock())
	}
	h.workAgain()
	for _, k := range slices.Clone(h.conns) {
		h.after(h.w.between(0, 50*us), k.readable)
	}
}

// workAgain has all idle workers check their lanes.
func (h *host) workAgain() {
	for _, l := range h.links {
		for _, p := range l.pumps {
			for ; p.idle > 0; p.idle-- {
				l.after(h.w.between(0, 50*us), p.work)
			}
		}
	}
}

// busy reports whether a store has yet to answer. The daemon waits until no op is left in the main
// lanes, and then stops its timer and the pumps. Between the two, ops may enter the main lanes
// again, for which it does not wait. In a run with Queued the daemon waits for such ops a while.
func (h *host) busy() bool {
	queued, flying, others := h.depth()
	switch {
	case h.queries > 0:
		return true
	case !h.w.p.Queued:
		return queued+flying+others > 0
	case h.stopped:
	case h.emptied == 0:
		if queued+flying == 0 {
			h.emptied = h.w.now
		}
	case flying == 0 && (queued > 0 || h.w.now > h.emptied+maxQueueing):
		h.stopped = true
	}
	return !h.stopped || others > 0
}

// maxQueueing is how long a daemon waits for ops that enter the main lanes during a takeover.
const maxQueueing = 20 * ms

// depth returns the number of ops that wait in the main lanes, of the batches of these in flight,
// and of the other batches in flight.
func (h *host) depth() (queued, flying, others int) {
	for _, l := range h.links {
		waiting, sent := l.storeLane.Main().Depth()
		_, renewing := l.storeLane.Renewals().Depth()
		// upstream.Pump cuts these batches. Their results are then Unknown, as after a timeout.
		_, ending := l.storeLane.Ends().Depth()
		queued, flying, others = queued+waiting, flying+sent, others+renewing+ending
	}
	return queued, flying, others
}

// edited returns a configuration that this process has not read, and in which some of its stores
// are missing.
func (h *host) edited() *conf {
	w := h.w
	w.conf = w.edit(w.conf)
	for _, l := range h.links {
		l.leaving = !slices.Contains(w.conf.stores(), l.of)
	}
	return w.conf
}

// successorConf returns the configuration that the successor has read. In most cases it is the one
// that this process follows, otherwise a later one of the operator. It is nil if that names fewer
// stores than the daemon has in use; then the daemon refuses the takeover.
func (h *host) successorConf() *conf {
	w := h.w
	if w.p.Namespaces == 0 || !w.chance(400) {
		return h.conf
	}
	h.editConf()
	next := *w.conf
	all := next.stores()
	next.spare = slices.Clone(next.spare)
	for _, l := range h.links {
		switch {
		case slices.Contains(all, l.of):
		case w.chance(200):
			w.counts.Tallies[refusedTakeovers]++
			w.say(nil, "host %d: no takeover, because the next process does not know %s", h.id, l.name)
			return nil
		default:
			next.spare = append(next.spare, l.of)
		}
	}
	return &next
}

// park leaves the detached holds of a daemon that has drained to the next process, which starts
// after a while, perhaps with another configuration. It reports whether it has done so. Sometimes
// it does not leave them, as if the next process could not use the state after an upgrade.
func (h *host) park() bool {
	w := h.w
	_, flying, others := h.depth()
	if h.eng.Detached() == 0 || len(h.eng.Sessions()) > 0 || flying+others > 0 || w.chance(200) {
		return false
	}
	if slices.ContainsFunc(h.links, func(l *link) bool { return l.leaving }) {
		return false
	}
	w.counts.Tallies[parks]++
	w.say(nil, "host %d parks its detached holds", h.id)
	h.draining = false
	c := h.conf
	if w.p.Namespaces > 0 && !w.p.Move && w.chance(400) {
		c = h.edited()
	}
	h.passOn(c)
	h.workAgain()
	most := 3 * sec
	if w.chance(300) {
		most = 40 * sec
	}
	h.freeze(w.between(100*ms, most)) // nothing happens between the two processes
	return true
}

// passOn replaces the engine with one that follows c.
func (h *host) passOn(c *conf) {
	w := h.w
	same := c == h.conf
	queued, _, _ := h.depth()
	snapshot, sessions, err := h.eng.Snapshot()
	if err != nil {
		w.fail("takeover", "", "snapshot: %v", err)
		return
	}
	old := make(map[*engine.Session]*conn)
	for _, k := range h.conns {
		if k.s != nil {
			old[k.s] = k
		}
	}
	h.tickAt = cache.Forever
	h.willFollow(c)
	h.newEngine()
	gone, err := h.relink()
	if err != nil {
		w.fail("takeover", "", "%v", err)
		return
	}
	next, err := h.eng.Take(snapshot, gone)
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
		k.s.SetTransport(k)
	}
	// The snapshot may differ only if stores may have other numbers in the next process.
	if again, _, err := h.eng.Snapshot(); err != nil || same && w.p.Namespaces == 0 &&
		string(again) != string(snapshot) {
		w.fail("takeover", "", "the snapshot of what was taken over is another (%v)", err)
	}
	if left := h.eng.Residue(); left.Unaccounted != 0 {
		w.fail("takeover", "", "of what was taken over: %v", left)
	}
	if !h.begin(gone) {
		return
	}
	w.counts.Faults[hostTakeover]++
	w.counts.Tallies[queuedOps] += queued
	w.say(nil, "host %d: another process has taken over %d sessions, same configuration %v", h.id,
		len(sessions), same)
	if !same {
		w.counts.Tallies[editedTakeovers]++
		h.sayConf()
	}
}

// begin continues from the state that was taken over, as daemon.begin does.
func (h *host) begin(gone map[string]*engine.StoreLane) bool {
	if !h.eng.Abandon(slices.Collect(maps.Values(gone))) {
		h.w.fail("takeover", "", "host %d uses a store that it does not have", h.id)
		return false
	}
	for _, l := range slices.Clone(h.links) {
		if l.leaving {
			h.abandoned(l)
		}
	}
	for _, l := range h.links {
		if l.hasSession() && !h.w.p.Calm && h.w.chance(300) {
			l.loseSession()
		}
	}
	for _, l := range h.links {
		l.trust()
	}
	h.wake(h.clock())
	return true
}

// abandoned ends a store that the successor does not have. The leases there end with their TTLs, or
// with the session. Clients may believe in holds there until they read that these are lost.
func (h *host) abandoned(l *link) {
	h.w.say(nil, "host %d: store %s is left behind", h.id, l.name)
	h.w.counts.Tallies[leftBehind]++
	h.links = slices.DeleteFunc(h.links, func(o *link) bool { return o == l })
	l.close()
}

// relink has the successor's engine follow a configuration. The engine uses the stores of the
// earlier engine, and further stores that only its configuration names. relink returns stand-ins
// for the stores that are leaving.
func (h *host) relink() (gone map[string]*engine.StoreLane, err error) {
	gone = make(map[string]*engine.StoreLane)
	links := slices.Clone(h.links)
	for i := range links { // in any order: stores have other numbers there
		j := h.w.pick(i + 1)
		links[i], links[j] = links[j], links[i]
	}
	for _, l := range links {
		if l.leaving {
			if gone[l.name], err = h.eng.StandIn(l.name, l.info(), nil); err != nil {
				return nil, err
			}
			continue
		}
		if err := l.add(h.eng); err != nil {
			return nil, err
		}
		for i, p := range l.pumps {
			p.lane = l.lane(i)
		}
	}
	for _, s := range h.conf.stores() {
		if !slices.ContainsFunc(links, func(l *link) bool { return l.of == s && !l.leaving }) {
			if _, err := h.open(s); err != nil {
				return nil, err
			}
		}
	}
	stay := slices.DeleteFunc(slices.Clone(h.links), func(l *link) bool { return l.leaving })
	return gone, h.route(h.conf, stay, false)
}

// loseSession makes the next process continue without the store session.
func (l *link) loseSession() {
	if l.pair != nil { // neither store is taken over
		l.pair.close()
		if err := l.openPair(); err != nil {
			l.h.w.fail("takeover", "", "%v", err)
			return
		}
	}
	l.closeSession()
	l.session = storeSession{tries: l.session.tries + 1}
	l.h.eng.NotTakenOver(l.storeLane)
	l.begin()
}

// hasSession reports whether leases at the store, or at one store of a pair, depend on a session of
// the daemon.
func (l *link) hasSession() bool {
	return slices.ContainsFunc(l.s.leaves, func(s *simStore) bool { return s.kind == likeEtcd })
}
