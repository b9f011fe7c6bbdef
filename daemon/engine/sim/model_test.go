package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// TestModelIsRedis carries out the same random ops on the model of a Redis and, with the driver, on
// a real one. It compares every answer, every hint and the keys afterwards. Ops come in batches,
// from several hosts. Some are late or repeated. Plain lockers lock the same keys. The server is
// flushed, loses its scripts and runs out of memory.
func TestModelIsRedis(t *testing.T) {
	srv := testserver.StartRedis(t)
	t.Run("live", func(t *testing.T) {
		d := newDuel(t, srv, 10*time.Minute, []int64{300_000, 450_000, 600_000})
		for seed := range uint64(60) {
			if !d.sequence(seed, 60) {
				t.Fatal("times meet that are minutes apart")
			}
		}
		t.Logf("%d ops compared, %d hints", d.ops, d.hints)
	})
	t.Run("permits", func(t *testing.T) {
		d := newDuel(t, srv, 10*time.Minute, []int64{300_000, 450_000, 600_000})
		for seed := range uint64(30) {
			d.permits(seed)
		}
		t.Logf("%d ops compared", d.ops)
	})
	// Here leases end during the test. The test gives up a sequence when the server's time comes too
	// close to the end of a lease to tell which was first. So a slow machine only takes longer.
	t.Run("ending", func(t *testing.T) {
		d := newDuel(t, srv, 60*time.Millisecond, []int64{40, 70, 100, 600_000})
		d.stalls = true
		given, end := 0, time.Now().Add(time.Minute)
		for seed := uint64(1000); d.endings < 100; seed++ {
			if !d.sequence(seed, 60) {
				given++
			}
			if time.Now().After(end) {
				t.Fatalf("only %d leases and places have ended, %d sequences were given up", d.endings, given)
			}
		}
		t.Logf("%d ops compared, %d hints, %d waits for an end, %d sequences given up", d.ops, d.hints,
			d.endings, given)
	})
}

// duelKeys are the locks that the hosts of a duel are about.
var duelKeys = []string{"a", "b", "c"}

// duel is a model and a real server.
type duel struct {
	t      *testing.T
	srv    *testserver.Redis
	stores []*redis.Store // of instance 1 and on
	ttls   []int64        // ms
	lease  int64          // ms, of a place in the queue

	rnd   *rand.Rand
	model *redisModel
	now   int64 // µs, the model's
	slop  int64 // ms by which the model's times may differ from the server's
	full  bool  // the server has no memory
	last  []uint64
	old   [][]cache.Op // by host
	told  [][]cache.Hint
	floor [2]uint64 // the highest base of the real one and of the model
	plain uint64    // plain lockers so far
	what  string    // the step under way, for a failure

	stalls              bool
	ops, hints, endings int
}

func newDuel(t *testing.T, srv *testserver.Redis, lease time.Duration, ttls []int64) *duel {
	d := &duel{t: t, srv: srv, ttls: ttls, lease: lease.Milliseconds(), told: make([][]cache.Hint, 4),
		last: make([]uint64, 4)}
	for n := range d.told {
		cfg, err := redis.Parse(srv.URL() + "?timeout=30s")
		if err != nil {
			t.Fatal(err)
		}
		cfg.WaiterLease = lease // shorter than a daemon's may be
		s, err := redis.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		d.stores = append(d.stores, s)
		for srv.Do("PUBLISH", hintsOf(s), "f"+redis.DefaultPrefix+"listening") != int64(1) {
			time.Sleep(time.Millisecond) // until its subscription stands
		}
		d.drain(n, "listening")
	}
	return d
}

func hintsOf(s *redis.Store) string { return "locksidecar:hint:" + s.Instance() }

// drain is the hints that instance n+1 has had up to one about key.
func (d *duel) drain(n int, key string) (hs []cache.Hint) {
	d.t.Helper()
	for {
		select {
		case h := <-d.stores[n].Hints():
			if h.Key == key {
				return hs
			}
			hs = append(hs, h)
		case <-time.After(30 * time.Second):
			d.t.Fatal("a hint never comes")
		}
	}
}

// sequence is so many steps from an empty server on; false when it had to be
// given up.
func (d *duel) sequence(seed uint64, steps int) bool {
	d.srv.Do("FLUSHALL")
	d.rnd, d.slop, d.old = rand.New(rand.NewPCG(seed, 3)), 1, make([][]cache.Op, len(d.stores))
	d.now = d.serverTime()
	d.model = newRedisModel(func() int64 { return d.now },
		func(inst uint32, what cache.HintKind, key string) {
			d.told[inst-1] = append(d.told[inst-1], cache.Hint{Kind: what, Key: key})
		})
	d.model.lease = d.lease
	clear(d.told)
	ok := true
	for n := 0; ok && n < steps && !d.t.Failed(); n++ {
		d.what = fmt.Sprintf("seed %d, step %d", seed, n)
		ok = d.step()
	}
	d.setFull(false)
	for n, s := range d.stores {
		d.srv.Do("PUBLISH", hintsOf(s), "f"+redis.DefaultPrefix+"end")
		hs := d.drain(n, "end")
		// a script does its keys in an order of its own
		byKey := func(a, b cache.Hint) int { return cmp.Compare(a.Key, b.Key) }
		slices.SortStableFunc(hs, byKey)
		slices.SortStableFunc(d.told[n], byKey)
		if ok && !slices.Equal(hs, d.told[n]) {
			d.t.Errorf("seed %d: host %d is told %v, and the model says %v", seed, n+1, hs, d.told[n])
		}
		d.hints += len(hs)
	}
	if d.t.Failed() {
		d.t.FailNow()
	}
	return ok
}

func (d *duel) step() bool {
	d.ripen()
	switch d.rnd.IntN(60) {
	case 0:
		d.srv.Do("FLUSHALL")
		d.model.flush()
	case 1:
		d.srv.Do("SCRIPT", "FLUSH")
	case 2:
		d.setFull(!d.full)
	case 3, 4, 5, 6:
		return d.plainLocker()
	}
	return d.batch(d.rnd.IntN(len(d.stores)))
}

func (d *duel) setFull(full bool) {
	if d.full = full; full {
		d.srv.Do("CONFIG", "SET", "maxmemory", "1")
	} else {
		d.srv.Do("CONFIG", "SET", "maxmemory", "0")
	}
}

// ripen keeps away from ends and other turns: it waits until those have come that are near, and
// now and then until the next one has.
func (d *duel) ripen() {
	near := int64(10)
	if d.rnd.IntN(8) == 0 {
		near = 200
	}
	for now := d.serverTime() / 1000; ; now = d.serverTime() / 1000 {
		next := int64(0)
		for _, at := range d.model.turns() {
			if at+d.slop >= now && at < now+near && (next == 0 || at < next) {
				next = at
			}
		}
		if next == 0 {
			return
		}
		for d.serverTime()/1000 <= next+d.slop+1 {
			time.Sleep(time.Millisecond)
		}
		if slices.Contains(d.model.ends(), next) {
			d.endings++
		}
		near = 10
	}
}

// batch carries out one batch of host n on both sides.
func (d *duel) batch(n int) bool {
	var ops []cache.Op
	for _, key := range duelKeys {
		if d.rnd.IntN(3) > 0 {
			op := d.op(n, key)
			ops = append(ops, op)
			d.old[n] = append(d.old[n], op)
		}
	}
	if len(ops) == 0 {
		return true
	}
	lift := uint64(0)
	if d.rnd.IntN(6) == 0 {
		lift = 5_000_000 // a floor that is ahead of every clock
	}
	floors := [2]uint64{d.floor[0] + lift, d.floor[1] + lift}
	for i := range ops {
		ops[i].Floor = floors[0]
	}
	got := make([]cache.Result, len(ops))
	ctx, cancel := context.WithTimeout(d.t.Context(), 30*time.Second)
	defer cancel()
	t0 := d.serverTime()
	d.stall()
	_ = d.stores[n].Apply(ctx, ops, got)
	stands := d.look()
	d.stall()
	if !d.passed(t0) {
		return false
	}
	for i := range ops {
		ops[i].Floor = floors[1]
	}
	want := d.modelled(n, ops)
	if !d.clear(t0) {
		return false
	}
	d.ops += len(ops)
	for i := range ops {
		d.same(n, &ops[i], got[i], want[i])
	}
	d.bases(got, want, floors)
	d.stands(stands)
	return true
}

// stall stops for a moment, now and then, as a busy machine does.
func (d *duel) stall() {
	if d.stalls && rand.IntN(4) == 0 {
		time.Sleep(rand.N(8 * time.Millisecond))
	}
}

// modelled is what the model makes of a batch: script by script, in the driver's
// order.
func (d *duel) modelled(n int, ops []cache.Op) []cache.Result {
	want := make([]cache.Result, len(ops))
	for i := range want {
		want[i].Left = -1
	}
	for _, sc := range []int{scriptRelease, scriptDowngrade, scriptRenew, scriptAcquire,
		scriptShare, scriptPeek} {
		var some []*cache.Op
		var res []*cache.Result
		for i := range ops {
			if scriptOf(&ops[i]) == sc {
				some, res = append(some, &ops[i]), append(res, &want[i])
			}
		}
		switch {
		case len(some) == 0:
		case d.full && refusedWhenFull(some[0].Kind):
			for _, r := range res {
				r.Status = cache.Refused
			}
		default:
			d.model.run(uint32(n+1), some, res)
		}
	}
	return want
}

// passed moves the model to the server's time; false when something has ended or turned
// since t0, or nearly, so that nobody can tell in which order.
func (d *duel) passed(t0 int64) bool {
	d.now = d.serverTime()
	d.slop = max(d.slop, (d.now-t0)/1000+1)
	return d.clear(t0)
}

func (d *duel) clear(t0 int64) bool {
	for _, at := range d.model.turns() {
		if at >= t0/1000-d.slop-1 && at <= d.now/1000+d.slop+1 {
			return false
		}
	}
	return true
}
