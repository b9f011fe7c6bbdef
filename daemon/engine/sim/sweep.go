package sim

import "slices"

// This file has sweeps. From time to time, a store whose leases depend on the daemon's store
// session is asked for the entries of that session. Entries that the daemon does not know are
// removed, as upstream/etcd does. In the simulator no request comes late enough to leave such an
// entry. So either the daemon knows each entry that a sweep finds, or no client may rely on it.

// sweepEvery is the mean time between two sweeps of a store.
const sweepEvery = 10 * sec

// found is an entry that a sweep has found.
type found struct {
	key string
	t   token
}

// sweep sweeps the store again and again.
func (l *link) sweep() {
	w := l.h.w
	l.after(w.skewed(sweepEvery), l.sweep)
	if w.calm || l.isCutOff() || w.now < l.s.paused {
		return
	}
	inst := l.inst
	w.at(l.h.departs()+w.skewed(w.p.Latency), func() {
		var all []found
		for _, k := range w.all() {
			for _, e := range l.s.etcd.keys[k.name] {
				if e.t.inst == inst {
					all = append(all, found{k.name, e.t})
				}
			}
		}
		l.after(w.skewed(w.p.Latency), func() {
			if l.inst == inst { // else a takeover has ended the sweep
				l.unknown(all)
			}
		})
	})
}

// unknown removes the entries that the daemon does not know.
func (l *link) unknown(all []found) {
	w := l.h.w
	for _, x := range all {
		if l.h.eng.Known(l.storeLane, x.key, x.t.n) {
			w.counts.Tallies[swept]++
			continue
		}
		w.at(l.h.departs()+w.skewed(w.p.Latency), func() {
			i := slices.IndexFunc(l.s.etcd.keys[x.key], func(e *entry) bool { return e.t == x.t })
			if i >= 0 {
				w.say(w.key(x.key), "store %s: a sweep of host %d removes %d", l.s.name, l.h.id, x.t.n)
				l.s.etcd.remove(x.key, i)
			}
		})
	}
}
