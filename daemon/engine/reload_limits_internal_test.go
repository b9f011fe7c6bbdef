package engine

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// A reload puts keys into a namespace of its own, which has a limit, and lets a waiter there in at
// once. Holds in other shards of the lock table count by then.
func TestAReloadCountsAllHoldsBeforeItGrants(t *testing.T) {
	for _, shard := range []int{0, 62} { // of the waiter; the reload visits the shards in order
		b := newBeating(t)
		if err := b.e.Route([]Namespace{{TTL: 30 * time.Second, Tenure: time.Second}}, nil); err != nil {
			t.Fatal(err)
		}
		key := prefixedKeyOfShard(shard)
		ask := func(s *Session, id uint64, key string, wait int64) {
			send(s, &protocol.Request{Op: protocol.OpAcquire, ID: id, Key: []byte(key),
				Mode: protocol.Shared, Wait: wait})
			b.answer()
		}
		ask(b.s, 1, key, 0)
		ask(b.s, 2, prefixedKeyOfShard(31), 0)
		b.now.Add(int64(2 * time.Second)) // another owner does not come in by the lease as it is
		other, k := open(t, b.e)
		k.buf = nil
		ask(other, 3, key, protocol.WaitAlways)
		if n := b.e.Held(); n != 2 || k.buf != nil {
			t.Fatalf("%d holds before the reload", n)
		}
		err := b.e.Route([]Namespace{{TTL: 30 * time.Second},
			{Prefix: "n:", TTL: 30 * time.Second, Tenure: time.Hour, MaxHolds: 2}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m := k.last(t); m.ID != 3 || m.Code != protocol.Limit {
			t.Errorf("waiter in shard %d: %v, with %d holds in a namespace that may have 2", shard,
				m.Code, b.e.Held())
		}
		b.e.End(other)
		b.e.End(b.s)
	}
}

// prefixedKeyOfShard is a key of that shard with the prefix "n:".
func prefixedKeyOfShard(shard int) string {
	for key := []byte("n:a"); ; key[len(key)-1]++ {
		if key[len(key)-1] == 'z' {
			key = append(key, 'a')
		}
		if shardOf(key) == shard {
			return string(key)
		}
	}
}

// Requests come between the moment from which they meet the new routes and the visit of the reload
// to the shard whose holds and waiters count in their namespace.
func TestRequestsDuringAReloadMeetItsLimits(t *testing.T) {
	d := newTwoStores(t)
	if _, err := d.e.AddStore("own", upstream.Info{Queue: true}, nil); err != nil {
		t.Fatal(err)
	}
	d.base("o:fence", ahead)
	d.acquire("h:held", time.Minute)
	d.acquire("w:held", time.Minute)
	waiter, _ := open(t, d.e)
	send(waiter, &protocol.Request{Op: protocol.OpAcquire, ID: 1, Key: []byte("w:held"),
		Wait: protocol.WaitAlways})
	d.answer()
	during := false
	// the routes have changed, and no shard has been visited
	d.e.Observe(onFall{fall: func(string, string, uint64) {
		during = true
		for id, c := range map[uint64]struct {
			key  string
			wait int64
		}{11: {"h:free", 0}, 12: {"w:other", protocol.WaitAlways}} {
			d.k.buf = nil
			send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: id, Key: []byte(c.key), Wait: c.wait})
			d.answer()
			if m := d.k.last(t); m.ID != id || m.Code != protocol.Limit {
				t.Errorf("acquire of %s: %v", c.key, m.Code)
			}
		}
	}})
	d.route(Namespace{}, Namespace{Prefix: "o:", Store: "own"}, Namespace{Prefix: "h:", MaxHolds: 1},
		Namespace{Prefix: "w:", MaxWaiters: 1})
	if !during {
		t.Fatal("nothing was asked during the reload")
	}
}

// A reload shortens max_wait while an acquire-many waits for its first key or for a later one. The
// time counts from the beginning of the request, also for the keys that it waits for later.
func TestAShorterMaxWaitReachesTheLaterWaitsOfAnAcquireMany(t *testing.T) {
	for _, late := range []bool{false, true} {
		d := newBeating(t)
		a, b := d.acquire("a", time.Hour), d.acquire("b", time.Hour)
		other, k := open(t, d.e)
		send(other, &protocol.Request{Op: protocol.OpAcquireMany, ID: 9,
			Keys: [][]byte{[]byte("a"), []byte("b")}, Wait: protocol.WaitAlways})
		d.answer()
		reload := func() {
			if err := d.e.Route([]Namespace{{MaxWait: 5 * time.Second}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if !late {
			reload()
		}
		d.now.Add(int64(3 * time.Second))
		k.buf = nil
		send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("a"), Fence: a.Fence})
		d.answer()
		d.now.Add(int64(time.Second)) // the host keeps off the key for a moment
		d.e.Tick()
		d.answer()
		if k.buf != nil || other.core.Holds.Load() != 1 {
			t.Fatal("it does not wait for the second key")
		}
		if late {
			reload()
		}
		d.now.Add(int64(2 * time.Second))
		d.e.Tick()
		d.answer()
		if m := k.last(t); m.ID != 9 || m.Code != protocol.Timeout {
			t.Errorf("late %v: after 6 s: %d %v", late, m.ID, m.Code)
		}
		send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("b"), Fence: b.Fence})
		d.answer()
		d.acquire("a", time.Hour)
	}
}

// The longest times that can be configured do not overflow: they act like no limit.
func TestTheLongestTimesOfANamespace(t *testing.T) {
	const longest = time.Duration(cache.Forever)
	d := newBeating(t)
	err := d.e.Route([]Namespace{{MaxWait: longest, MaxHold: longest, Heartbeat: longest,
		LingerPause:    longest,
		MaxHandoffTime: longest, LocalAfter: longest, Local: true}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := d.acquire("a", time.Hour)
	other, k := open(t, d.e)
	k.buf = nil
	send(other, &protocol.Request{Op: protocol.OpAcquire, ID: 8, Key: []byte("a"),
		Wait: protocol.WaitAlways})
	send(other, &protocol.Request{Op: protocol.OpAcquireMany, ID: 9, Owner: 1,
		Keys: [][]byte{[]byte("a"), []byte("b")}, Wait: protocol.WaitAlways})
	d.answer()
	d.e.Reroute()
	d.now.Add(int64(time.Minute))
	d.e.Tick()
	d.answer()
	if k.buf != nil {
		t.Errorf("the waits have ended: %+v", k.last(t))
	}
	d.k.buf = nil
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("a"), Fence: a.Fence})
	d.answer()
	if m := d.k.last(t); m.ID != 6 || m.Code != protocol.OK {
		t.Errorf("the lock is not held any more: %d %v", m.ID, m.Code)
	}
}
