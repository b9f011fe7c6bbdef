package chaos

import (
	"math/rand/v2"
	"strings"
	"time"
)

// tendStores has the operator of the stores stop, kill and restart them, and sometimes do something to a daemon meanwhile.
func (s *storm) tendStores(until time.Time) {
	rnd := rand.New(rand.NewPCG(s.seed, 50))
	for {
		things := s.storeThings(rnd)
		for _, i := range rnd.Perm(len(things)) {
			rest(until, time.Duration(1+rnd.IntN(4))*time.Second)
			if time.Now().After(until) {
				return
			}
			things[i]()
		}
	}
}

// rest sleeps for d, and not beyond until.
func rest(until time.Time, d time.Duration) { time.Sleep(min(d, time.Until(until))) }

// storeThings are all that can be done to the stores of this episode.
func (s *storm) storeThings(rnd *rand.Rand) (all []func()) {
	for _, d := range s.depots {
		add := func(what string, possible bool, forgets bool, do func(while func())) {
			if !possible {
				return
			}
			all = append(all, func() {
				s.note("store: " + what)
				over := d.trouble()
				done := func() {}
				if forgets {
					done = s.forgetting()
				}
				began := time.Now()
				do(func() { s.meanwhile(rnd) })
				done()
				over()
				s.t.Logf("%s store %s: %s took %v", began.Format(time.StampMilli), d.name, what, time.Since(began))
			})
		}
		lasting := func() time.Duration { return time.Duration((0.2 + 2*rnd.Float64()) * float64(stormTTL)) }
		add("stop", d.freeze != nil, false, func(while func()) {
			d.freeze()
			defer d.thaw()
			end := time.Now().Add(lasting())
			while()
			time.Sleep(time.Until(end))
		})
		add("kill", d.kill != nil, d.forgetsOnKill, func(while func()) {
			d.kill()
			defer d.start()
			end := time.Now().Add(lasting())
			while()
			time.Sleep(time.Until(end))
		})
		add("restart", d.store.stop != nil && d.start != nil, d.forgetsOnKill, func(func()) { d.store.stop(); d.start() })
		add("failover", d.failover != nil, d.forgetsOnOver, func(while func()) { d.failover(while) })
		// etcd and ZooKeeper that have lost their data are not used again before the daemons have been started anew.
		add("flush", d.flush != nil && !d.ordered(), true, func(func()) { d.flush() })
	}
	return all
}

// meanwhile has some daemon taken over, reloaded or drained, if nobody does anything to it now, while a store is away.
func (s *storm) meanwhile(rnd *rand.Rand) {
	st := s.sites[rnd.IntN(len(s.sites))]
	what := rnd.IntN(3)
	st.mu.Lock()
	defer st.mu.Unlock()
	switch what {
	case 0:
		s.note("takeover: while a store is down")
		st.takeOver("takeover: while a store is down", 1, func([]*process) {})
	case 1:
		s.note("reload: while a store is down")
		st.reload("other settings", st.vary, time.Now())
	case 2:
		s.note("drain: while a store is down")
		st.drain()
	}
}

// forgetting begins a time in which a store may forget what it keeps; done ends it. A daemon finds out with a
// renewal, so for a TTL more it may hand on what is gone. It is for all keys but those that no store of the two has.
func (s *storm) forgetting() (done func()) {
	from := now()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, keys := range []string{"x:", "y:", "p"} {
			s.forgets = append(s.forgets, forget{keys, span{from, now() + int64(stormTTL)}})
		}
	}
}

// move is where the keys x: are on their way.
type move struct {
	to, both string // as in room, after this rollout
}

// moveKeys moves the keys x: from one store to the other in three rollouts, or to etcd or ZooKeeper in four, as
// documented, and back, as far as there is a way: from etcd and ZooKeeper there is none. Every rollout ends on every host before the next one begins: until all
// daemons have reloaded and no lock is held any more that was taken before that.
func (s *storm) moveKeys(until time.Time) {
	rnd := rand.New(rand.NewPCG(s.seed, 60))
	from, to := s.depots[0], s.depots[1]
	for !from.ordered() {
		rest(until, time.Duration(2+rnd.IntN(5))*time.Second)
		steps := []room{{store: from.name, both: to.name}, {store: to.name}}
		if to.ordered() {
			steps = []room{{store: from.name, both: to.name}, {store: from.name, both: to.name, epoch: firstLift}, {store: to.name, epoch: firstLift}}
		}
		for _, step := range steps {
			if !s.rollOut(rnd, step, until) {
				return
			}
		}
		s.note("move: to another store")
		from, to = to, from
	}
}

// rollOut brings all daemons to a step, in some order; false when the time is over before they are all there.
func (s *storm) rollOut(rnd *rand.Rand, step room, until time.Time) bool {
	for _, i := range rnd.Perm(len(s.sites)) {
		for !s.stepAt(s.sites[i], step) {
			s.put("move: a rollout has to wait for a store")
			if time.Now().After(until) {
				return false
			}
			time.Sleep(200 * time.Millisecond)
		}
		rest(until, time.Duration(rnd.IntN(1000))*time.Millisecond)
	}
	began := time.Now()
	return s.until(patience, func() bool { return s.noneOlder("x:", time.Since(began)) }) && time.Now().Before(until)
}

func (s *storm) stepAt(st *site, step room) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.reload("move keys", func(l *layout) {
		r := l.rooms["x:"]
		r.store, r.both, r.epoch = step.store, step.both, step.epoch
		r.more = nil // what fits one store may not fit another
		l.rooms["x:"] = r
	}, time.Now())
}

// noneOlder says that no daemon's clients hold a lock of the keys that begin with prefix for longer than d.
func (s *storm) noneOlder(prefix string, d time.Duration) bool {
	for _, st := range s.sites {
		holds, err := st.holds(prefix)
		if err != nil {
			return false
		}
		for _, h := range holds {
			if time.Duration(h.Held)*time.Millisecond >= d || !strings.HasPrefix(h.Key, prefix) {
				return false
			}
		}
	}
	return true
}
