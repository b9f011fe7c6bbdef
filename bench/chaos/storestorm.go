package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol/client"
)

// tendStores lets the operator of the stores stop, kill and restart them. Sometimes it also does
// something to a daemon meanwhile.
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

// rest sleeps for d, but not beyond until.
func rest(until time.Time, d time.Duration) { time.Sleep(min(d, time.Until(until))) }

// storeThings returns everything that can be done to the stores of this episode.
func (s *storm) storeThings(rnd *rand.Rand) (all []func()) {
	for _, d := range s.depots {
		add := func(what string, possible bool, forgets bool, do func(while func())) {
			if !possible {
				return
			}
			all = append(all, func() {
				s.note("store: " + what)
				past := s.doing("store: "+what, nil, d)
				over := d.trouble()
				done := func() {}
				if forgets {
					done = s.forgetting(d)
				}
				began := time.Now()
				ended := func() {}
				do(func() { ended = beside(func() { s.meanwhile(rnd) }) })
				done()
				over()
				past()
				ended()
				s.t.Logf("%s store %s: %s took %v", began.Format(time.StampMilli), d.name, what,
					time.Since(began))
			})
		}
		// A store that loses fences above its clock continues from the clock, so the fences would fall.
		// Fences are above the clock after a fence_epoch. They may also be above it if keys come from the
		// embedded store of a killed daemon.
		may := d.ordered() || !s.lifted && !s.toOrdered && !s.anyKilled()
		lasting := func() time.Duration { return time.Duration((0.2 + 2*rnd.Float64()) * float64(stormTTL)) }
		add("stop", d.freeze != nil, false, func(while func()) {
			d.freeze()
			defer d.thaw()
			end := time.Now().Add(lasting())
			while()
			time.Sleep(time.Until(end))
		})
		add("kill", d.kill != nil && (may || !d.forgetsOnKill), d.forgetsOnKill, func(while func()) {
			d.kill()
			defer d.start()
			end := time.Now().Add(lasting())
			while()
			time.Sleep(time.Until(end))
		})
		add("restart", d.store.stop != nil && d.start != nil && (may || !d.forgetsOnKill),
			d.forgetsOnKill, func(func()) { d.store.stop(); d.start() })
		add("failover", d.failover != nil, d.forgetsOnOver, func(while func()) { d.failover(while) })
		// After etcd or ZooKeeper has lost its data, a daemon refuses it until the daemon is restarted.
		add("flush", d.flush != nil && may && !d.ordered(), true, func(func()) { d.flush() })
	}
	return all
}

// anyKilled reports whether a daemon has been killed.
func (s *storm) anyKilled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.all, func(p *process) bool {
		return p.ended() && p.code() == 128+int(syscall.SIGKILL)
	})
}

// beside runs do in a goroutine. wait blocks until do has returned. If do has panicked, wait panics
// with the same value.
func beside(do func()) (wait func()) {
	done := make(chan any, 1)
	go func() {
		defer func() { done <- recover() }()
		do()
	}()
	return func() {
		if r := <-done; r != nil {
			panic(r)
		}
	}
}

// meanwhile takes over, reloads or drains some daemon while a store is away, if no operator is busy
// with that daemon for a moment before. A daemon may not start before the store is back.
func (s *storm) meanwhile(rnd *rand.Rand) {
	st := s.sites[rnd.IntN(len(s.sites))]
	what := rnd.IntN(3)
	for end := time.Now().Add(stormTTL / 2); !st.mu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return
		}
	}
	defer st.mu.Unlock()
	defer s.doing([]string{"takeover", "reload", "drain"}[what]+": while a store is down", st, nil)()
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

// forgetting begins a time in which a store may forget locks; done ends it. A daemon notices that
// with a renewal. So it may hand on a lost lock for another TTL.
func (s *storm) forgetting(d *depot) (done func()) {
	from := now()
	return func() { s.forgot(d, span{from, now() + int64(stormTTL)}) }
}

// moveKeys moves the keys x: from one store to the other and back, as documented. A move takes
// three rollouts, or four if it goes to etcd or ZooKeeper. From there the keys cannot move back.
// Every rollout ends on every host before the next one begins. It has ended when all daemons have
// reloaded, and no lock is held any more that was acquired before.
func (s *storm) moveKeys(until time.Time) {
	rnd := rand.New(rand.NewPCG(s.seed, 60))
	from, to := s.depots[0], s.depots[1]
	for !from.ordered() {
		rest(until, time.Duration(2+rnd.IntN(5))*time.Second)
		steps := []room{{store: from.name, both: to.name}, {store: to.name}}
		if to.ordered() {
			steps = []room{{store: from.name, both: to.name},
				{store: from.name, both: to.name, epoch: firstLift}, {store: to.name, epoch: firstLift}}
		}
		for _, step := range steps {
			if !s.rollOut(rnd, step, until) || step.both != "" && !s.lockInBoth("x:", until) {
				return
			}
		}
		s.note("move: to another store")
		from, to = to, from
	}
}

// rollOut brings all daemons to a step, in some order. It returns false if the time is over before
// all daemons are there.
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
	return s.until(patience, func() bool { return s.noneOlder("x:", time.Since(began)) }) &&
		time.Now().Before(until)
}

func (s *storm) stepAt(st *site, step room) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.reload("move keys", func(l *layout) {
		r := l.rooms["x:"]
		r.store, r.both, r.epoch = step.store, step.both, step.epoch
		r.more = nil // settings that fit one store may not fit another
		l.rooms["x:"] = r
	}, time.Now())
}

// lockInBoth acquires each lock of the keys that begin with prefix once. So both stores know a
// fence that is above all earlier ones. It returns false if the time is over before that.
func (s *storm) lockInBoth(prefix string, until time.Time) bool {
	args := []client.AcquireArgs{}
	for i := range 3 {
		args = append(args, client.AcquireArgs{Key: fmt.Sprint(prefix, i)})
	}
	for i := range s.sites {
		for _, name := range []string{"kept by ", "read by ", "forced "} {
			args = append(args, client.AcquireArgs{Key: fmt.Sprint(prefix, name, i)})
		}
		if s.semaphores(prefix) {
			args = append(args, client.AcquireArgs{Key: fmt.Sprint(prefix, "kept by ", i),
				Permits: uint32(permits(0))})
		}
	}
	if s.semaphores(prefix) {
		args = append(args, client.AcquireArgs{Key: prefix + "0", Permits: uint32(permits(0))})
	}
	for _, a := range args {
		for s.lockOnce(a) != nil {
			if time.Now().After(until) {
				s.put("move: a key is not locked in both stores in time")
				return false
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return true
}

// lockOnce acquires a lock at some daemon, and releases it.
func (s *storm) lockOnce(a client.AcquireArgs) error {
	c, err := s.sites[0].dial()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a.Owner, a.Wait = 1, 5*time.Second
	h, err := c.Lock(ctx, a)
	if err != nil {
		return err
	}
	return h.Release(ctx)
}

// noneOlder reports whether no client of a daemon has held a lock of the keys that begin with
// prefix for longer than d.
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
