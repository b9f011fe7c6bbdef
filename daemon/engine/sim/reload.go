package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// This file has reloads: a daemon applies another configuration while it serves, as storeSet.change
// does. Stores that the configuration no longer names are dropped once they are unused.

// dropEvery is the interval at which a daemon checks whether a store can be dropped.
const dropEvery = 50 * ms

// reload has the host read the configuration, which in most cases has changed.
func (h *host) reload() {
	if h.steps != nil {
		return
	}
	h.editConf()
	c, bad := h.w.conf, h.w.chance(80)
	if pick := h.w.stepDice; pick != nil && !h.passing && !h.draining && h.stale == 0 {
		h.inSteps(h.conf, pick, func() { h.takeUp(c, bad) })
		return
	}
	h.takeUp(c, bad)
}

// editConf has the operator edit the configuration, in most cases.
func (h *host) editConf() {
	switch w := h.w; {
	case !w.chance(700):
	case w.p.Move:
		w.conf = w.move()
	default:
		w.conf = w.edit(w.conf)
	}
}

// willFollow records that the daemon follows c from now on.
func (h *host) willFollow(c *conf) {
	for _, k := range h.w.everything {
		if was, is := h.conf.of(k.name).Heartbeat, c.of(k.name).Heartbeat; is > 0 &&
			(was == 0 || is < was) {
			h.strict[k.name] = h.w.now
		}
	}
	h.conf = c
}

// takeUp is one reload. A bad configuration changes nothing.
func (h *host) takeUp(c *conf, bad bool) {
	w := h.w
	var use, added []*link
	for _, s := range c.stores() {
		use = append(use, h.linked(s))
	}
	for _, l := range h.links {
		l.rename(!slices.Contains(use, l))
	}
	for i, s := range c.stores() {
		if use[i] != nil {
			continue
		}
		l, err := h.open(s)
		if err != nil {
			w.fail("reload", "", "host %d opens %s: %v", h.id, s.name, err)
			return
		}
		use[i], added = l, append(added, l)
	}
	if !bad {
		h.willFollow(c) // before route, which may let waiters in at once
	}
	err := h.route(c, use, bad)
	if bad != (err != nil) {
		w.fail("reload", "", "host %d: bad %v, and the error is %v", h.id, bad, err)
		return
	}
	if bad {
		w.counts.Tallies[badReloads]++
		for _, l := range added {
			h.leave(l)
		}
		for _, l := range h.links {
			l.rename(l.leaving)
		}
		return
	}
	w.counts.Faults[hostReload]++
	w.note(kindFault, nil, uint64(hostReload), uint64(h.id))
	h.eng.SetLimits(c.limits)
	for _, l := range h.links {
		switch using := slices.Contains(use, l); {
		case using && l.leaving:
			l.leaving = false
			w.counts.Tallies[takenBack]++
		case !using:
			h.leave(l)
		}
	}
	h.sayConf()
}

func (h *host) sayConf() {
	if h.w.trace == nil {
		return
	}
	for _, ns := range h.conf.namespaces {
		h.w.say(nil, "host %d: prefix %q at %s, users %v, local %v, heartbeat %v, max hold %v", h.id,
			ns.Prefix, ns.at.name, ns.Users, ns.Local, ns.Heartbeat, ns.MaxHold)
	}
}

// linked returns the host's link to a store that a reload keeps; nil if the host has to open the
// store anew. A link that is leaving is taken back in most cases. Otherwise the store has two links
// for a while, which is not possible for a store on the host's own disk.
func (h *host) linked(s *simStore) *link {
	for _, l := range h.links {
		if l.of == s && (!l.leaving || s.kind == likeEmbedded || h.w.chance(500)) {
			return l
		}
	}
	return nil
}

// route has the engine follow a configuration. A bad one names a store that does not exist, or
// names a namespace twice.
func (h *host) route(c *conf, use []*link, bad bool) error {
	var list []engine.Namespace
	for _, ns := range c.namespaces {
		n := ns.Namespace
		i := slices.IndexFunc(use, func(l *link) bool { return l.of == ns.at })
		if n.Store = use[i].name; ns.at.kind != likeBoth {
			n.FenceEpoch = ns.at.epoch
		}
		list = append(list, n)
	}
	switch {
	case !bad:
	case h.w.chance(500):
		list = append(list, list[0])
	default:
		list = append(list, engine.Namespace{Prefix: "x", Store: "nowhere"})
	}
	return h.eng.Route(list, c.classes)
}

// leave has a store dropped once it is unused.
func (h *host) leave(l *link) {
	if l.leaving {
		return
	}
	l.leaving = true
	h.w.say(nil, "host %d: store %s is leaving", h.id, l.name)
	var poll func()
	poll = func() {
		switch {
		case !l.leaving:
		case h.passing || h.steps != nil || !h.eng.DropStore(l.storeLane):
			l.after(dropEvery, poll)
		default:
			h.dropped(l)
		}
	}
	l.after(h.w.between(0, dropEvery), poll)
}

// unused checks that no client has a hold at a store that has been dropped.
func (h *host) unused(l *link) {
	for _, k := range h.w.everything {
		for _, o := range k.holds {
			if o.k.h != h || o.k.gen != h.gen || o.lossSent || !o.believed() {
				continue
			}
			if o.link == l || o.degraded && o.at == l.s && h.linkTo(l.s) == nil {
				h.w.fail("dropped in use", k.name, "host %d has dropped store %s, where client %d holds with fence %d·%d, degraded %v",
					h.id, l.name, o.c.id, o.fence>>10, o.fence&1023, o.degraded)
			}
		}
	}
}

// dropped closes a store that the engine has forgotten. Its driver ends the session there, so other
// hosts may take the keys of its leases.
func (h *host) dropped(l *link) {
	w := h.w
	w.say(nil, "host %d: store %s has been dropped", h.id, l.name)
	w.counts.Tallies[dropped]++
	h.links = slices.DeleteFunc(h.links, func(o *link) bool { return o == l })
	l.close()
	h.unused(l)
	for _, line := range l.lines() {
		if line.s.kind == likeEtcd && line.session.id != 0 {
			line.s.etcd.endSession(line.session.id)
		}
	}
	if l.s.kind == likeEmbedded {
		if n := len(l.session.held) + len(l.session.permits); n > 0 {
			w.fail("reload", "", "host %d has dropped its embedded store, where %d keys are held", h.id, n)
		}
		l.s.saved.until = 0
	}
}
