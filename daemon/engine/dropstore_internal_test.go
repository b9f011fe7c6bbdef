package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// twoStores is an engine with a second store, which has the keys with the prefix "o:".
type twoStores struct {
	*beating
	other *StoreLane
}

func newTwoStores(t *testing.T) *twoStores {
	d := &twoStores{beating: newBeating(t)}
	d.other = d.add("other")
	d.route(Namespace{}, Namespace{Prefix: "o:", Store: "other"})
	return d
}

func (d *twoStores) add(name string) *StoreLane {
	d.Helper()
	sl, err := d.e.AddStore(name, upstream.Info{Rebase: true, Queue: true, Permits: true,
		Timeout: time.Second}, nil)
	if err != nil {
		d.Fatal(err)
	}
	return sl
}

func (d *twoStores) route(list ...Namespace) {
	d.Helper()
	if err := d.e.Route(list, nil); err != nil {
		d.Fatal(err)
	}
}

// otherAnswers answers every op of the second store with r. It returns the number of ops.
func (d *twoStores) otherAnswers(r cache.Result) (n int) {
	for p := d.other.main.Next(); p != nil; p = d.other.main.Next() {
		p.Sent = d.now.Load()
		for i := range p.Ops {
			p.Results[i] = r
			n++
		}
		d.e.Deliver(p)
		d.other.main.Done(p)
	}
	return n
}

// drop calls DropStore for the second store, and fails unless it returns want.
func (d *twoStores) drop(want bool) {
	d.Helper()
	if got := d.e.DropStore(d.other); got != want {
		d.Fatalf("DropStore returned %v, want %v", got, want)
	}
}

func (d *twoStores) granted(id uint64) protocol.Grant {
	d.Helper()
	m := d.k.last(d)
	g, err := m.Grant()
	if m.Code != protocol.OK || m.ID != id || err != nil {
		d.Fatal(m.ID, m.Code, err)
	}
	return g
}

// A waiter in backoff follows its key to another store, and does not keep the earlier store in use.
func TestAWaiterInBackoffDoesNotKeepADroppedStore(t *testing.T) {
	d := newTwoStores(t)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"),
		Wait: protocol.WaitAlways})
	if d.otherAnswers(cache.Result{Status: cache.Refused}) != 1 {
		t.Fatal("the store was not asked")
	}
	d.drop(false) // keys are still routed to it
	d.route(Namespace{})
	d.drop(true)
	d.now.Add(int64(2 * time.Second))
	d.e.Tick()
	d.answer()
	d.granted(7)
}

// A multi-acquire requests each key at the store to which the key is routed at that moment.
func TestAMultiAcquireFollowsItsKeysToAnotherStore(t *testing.T) {
	d := newTwoStores(t)
	g := d.acquire("a", 30*time.Second)
	send(d.s, &protocol.Request{Op: protocol.OpAcquireMany, ID: 9, Owner: 3,
		Keys: [][]byte{[]byte("a"), []byte("o:k")},
		Wait: protocol.WaitAlways, TTL: 30000})
	if d.otherAnswers(cache.Result{Status: cache.Granted, Base: 5}) != 2 {
		t.Fatal("the second key was not acquired and released")
	}
	d.route(Namespace{})
	d.drop(true)
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("a"), Fence: g.Fence})
	d.answer()
	m := d.k.last(t)
	if gs, err := m.Grants(); m.Code != protocol.OK || m.ID != 9 || err != nil || len(gs) != 2 {
		t.Error(m.ID, m.Code, gs, err)
	}
}

// A reload denies keys to a user who waits for them, in a queue and in a multi-acquire.
func TestAReloadRefusesWaitersThatItDenies(t *testing.T) {
	d := newTwoStores(t)
	d.s.peer.UID = 1000
	g := d.acquire("a", 30*time.Second)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Owner: 1, Key: []byte("a"),
		Wait: protocol.WaitAlways})
	d.route(Namespace{Users: []int{1001}})
	if m := d.k.last(t); m.ID != 7 || m.Code != protocol.Denied {
		t.Fatal(m.ID, m.Code)
	}
	d.route(Namespace{})
	send(d.s, &protocol.Request{Op: protocol.OpAcquireMany, ID: 9, Owner: 3,
		Keys: [][]byte{[]byte("a"), []byte("b")},
		Wait: protocol.WaitAlways})
	d.answer()
	d.route(Namespace{}, Namespace{Prefix: "b", Users: []int{1001}})
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("a"), Fence: g.Fence})
	d.answer()
	if m := d.k.last(t); m.ID != 9 || m.Code != protocol.Denied {
		t.Error(m.ID, m.Code)
	}
}

// The permits that are held at the earlier store keep it in use. The semaphore itself moves at
// once.
func TestADroppedStoreIsUsedUntilItsPermitsAreReleased(t *testing.T) {
	d := newTwoStores(t)
	next := d.add("next")
	permit := protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"),
		Mode: protocol.Permit, Permits: 2,
		Wait: protocol.WaitAlways}
	send(d.s, &permit)
	d.otherAnswers(cache.Result{Status: cache.Granted, Base: 5})
	g := d.granted(7)
	d.route(Namespace{}, Namespace{Prefix: "o:", Store: "next"})
	d.drop(false)
	left := d.other
	d.other = next
	permit.ID = 8
	send(d.s, &permit)
	if d.otherAnswers(cache.Result{Status: cache.Granted, Base: 6}) != 1 {
		t.Fatal("the second permit is not requested at the present store")
	}
	d.other = left
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("o:k"), Fence: g.Fence})
	d.otherAnswers(cache.Result{Status: cache.Done})
	d.drop(true)
	send(d.s, &protocol.Request{Op: protocol.OpInspect, ID: 10, Key: []byte("o:k"),
		Mode: protocol.Permit})
	if m := d.k.last(t); m.ID != 10 || m.Code != protocol.OK {
		t.Error(m.ID, m.Code)
	}
}

func TestAStoreNumberIsNotUsedAgain(t *testing.T) {
	d := newTwoStores(t)
	seen := map[int]bool{d.u.core.ID: true, d.other.core.ID: true}
	d.route(Namespace{})
	d.drop(true)
	for range 200 {
		d.other = d.add("other")
		if id := d.other.core.ID; seen[id] {
			t.Fatalf("number %d is used again", id)
		}
		seen[d.other.core.ID] = true
		d.drop(true)
	}
}

func TestARefusedChangeOfRoutesKeepsTheLimits(t *testing.T) {
	d := newTwoStores(t)
	d.route(Namespace{MaxHolds: 10})
	if d.e.Route([]Namespace{{MaxHolds: 1}, {Prefix: "x:", Store: "none"}}, nil) == nil {
		t.Fatal("a route to an unknown store is accepted")
	}
	if n := d.e.routes.Load().routes[""].policy.Use.MaxHolds.Load(); n != 10 {
		t.Errorf("the limit is %d", n)
	}
}

// A reload replaces a class of a namespace with a namespace of its own, which has its own limits.
func TestANamespaceThatReplacesAClassHasItsOwnLimits(t *testing.T) {
	d := newTwoStores(t)
	if err := d.e.Route([]Namespace{{MaxHolds: 1}}, []Class{{Name: "a", Prefix: "a:"}}); err != nil {
		t.Fatal(err)
	}
	d.route(Namespace{MaxHolds: 1}, Namespace{Prefix: "a:", MaxHolds: 1})
	d.acquire("k", 30*time.Second)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 6, Key: []byte("a:k"), TTL: 30000})
	d.answer()
	if m := d.k.last(t); m.ID != 6 || m.Code != protocol.OK {
		t.Errorf("the hold of the new namespace counts in the other one: reply %d has code %v", m.ID,
			m.Code)
	}
}

// A lease is renewed and released while DropStore visits the tables. The renewal is still in
// flight, so its answer must find the store.
func TestAStoreWithARenewalInFlightIsNotDropped(t *testing.T) {
	d := newTwoStores(t)
	key := "o:k"
	for shardOf(key) == 0 {
		key += "x"
	}
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte(key), TTL: 30000})
	d.otherAnswers(cache.Result{Status: cache.Granted, Base: 5})
	g := d.granted(7)
	d.route(Namespace{})

	sh := d.e.lock(0) // DropStore waits for the first shard
	done := make(chan bool)
	go func() { done <- d.e.DropStore(d.other) }()
	// so that DropStore most likely waits; the result is the same otherwise
	time.Sleep(100 * time.Millisecond)
	send(d.s, &protocol.Request{Op: protocol.OpRenew, ID: 8, Key: []byte(key), Fence: g.Fence})
	renewal := d.other.renewals.Next()
	if renewal == nil {
		t.Fatal("the lease is not renewed")
	}
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 9, Key: []byte(key), Fence: g.Fence})
	d.otherAnswers(cache.Result{Status: cache.Done})
	sh.mu.Unlock()
	if <-done {
		t.Error("the store is dropped")
	}
	renewal.Sent = d.now.Load()
	renewal.Results[0] = cache.Result{Status: cache.NotHeld}
	d.e.Deliver(renewal)
	d.other.renewals.Done(renewal)
	d.drop(true)
}

// A store goes down for good, and a reload removes it. The renewals that wait for it concern leases
// that have ended.
func TestAStoreThatStaysDownIsDroppedOnceItsLeasesHaveEnded(t *testing.T) {
	d := newTwoStores(t)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"), TTL: 30000})
	d.otherAnswers(cache.Result{Status: cache.Granted, Base: 5})
	d.granted(7)
	d.e.StoreDown(d.other, errors.New("down"))
	d.route(Namespace{})
	for range 20 {
		d.now.Add(int64(10 * time.Second))
		d.e.Tick()
	}
	if waiting, _ := d.other.renewals.Depth(); waiting == 0 {
		t.Error("no renewal waits")
	}
	if n := d.e.LeasesAt(d.other); n != 0 {
		t.Fatalf("%d leases", n)
	}
	d.drop(true)
}

// The goroutines of a store end after it has been dropped, so it can still report that it is down.
// Tables do not remember the store for that: a takeover would look for it.
func TestLateNewsOfADroppedStoreIsIgnored(t *testing.T) {
	d := newTwoStores(t)
	d.acquire("k", 30*time.Second)
	d.route(Namespace{})
	d.drop(true)
	d.e.StoreDown(d.other, errors.New("down"))
	d.takenOver(newBeating(t))
}

// The query for a key's holders starts late: the key has moved and its earlier store is dropped.
// The answer is not "free", because no store was queried.
func TestAHolderQueryToADroppedStoreIsNotAnsweredAsFree(t *testing.T) {
	d := newTwoStores(t)
	var put Query
	d.e.SetQueries(func(q Query) { put = q })
	send(d.s, &protocol.Request{Op: protocol.OpInspect, ID: 7, Key: []byte("o:k"),
		Flags: protocol.FlagHolders})
	d.route(Namespace{})
	d.drop(true)
	asked := false
	put(t.Context(), func(sl *StoreLane) (none upstream.Capabilities) {
		asked = asked || sl == d.u
		return none // as stores.capabilities does for a dropped store
	})(t.Context())
	m := d.k.last(t)
	st, _ := m.State()
	if m.Code == protocol.OK && st.Held == protocol.HeldNot && !asked {
		t.Error("the key is reported free, and no store was queried")
	}
}

// A snapshot leaves out what a session that has ended has asked a store for. If no process takes it
// over, the answers of the store still count.
func TestASnapshotKeepsTheCountOfAnswers(t *testing.T) {
	d := newTwoStores(t)
	send(d.s, &protocol.Request{Op: protocol.OpInspect, ID: 7, Key: []byte("o:k")})
	d.e.End(d.s)
	if _, _, err := d.e.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if d.otherAnswers(cache.Result{Status: cache.Done}) != 1 {
		t.Fatal("the store was not asked")
	}
	if l := d.e.Residue(); !l.None() {
		t.Error(l)
	}
}

// A reload denies a key that an acquire-many has taken already, while it waits for another one.
func TestAMultiAcquireIsNotGrantedAKeyThatAReloadDenies(t *testing.T) {
	d := newTwoStores(t)
	d.s.peer.UID = 1000
	g := d.acquire("z", 30*time.Second)
	send(d.s, &protocol.Request{Op: protocol.OpAcquireMany, ID: 9, Owner: 3,
		Keys: [][]byte{[]byte("a"), []byte("z")},
		Wait: protocol.WaitAlways, TTL: 30000})
	d.answer()
	d.route(Namespace{}, Namespace{Prefix: "a", Users: []int{1001}})
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("z"), Fence: g.Fence})
	d.answer()
	if m := d.k.last(t); m.ID != 9 || m.Code != protocol.Denied {
		gs, _ := m.Grants()
		t.Errorf("request %d: %v, grants %v; want it denied", m.ID, m.Code, gs)
	}
	if n := d.e.Held(); n != 0 {
		t.Errorf("%d keys are held", n)
	}
}
