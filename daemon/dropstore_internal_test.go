package daemon

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// dropping is an engine with a second store, of the keys that begin with "o:".
type dropping struct {
	*beating
	other *Unit
}

func newDropping(t *testing.T) *dropping {
	d := &dropping{beating: newBeating(t)}
	d.other = d.add("other")
	d.route(Namespace{}, Namespace{Prefix: "o:", Store: "other"})
	return d
}

func (d *dropping) add(name string) *Unit {
	d.Helper()
	u, err := d.e.AddStore(name, upstream.Info{Rebase: true, Queue: true, Permits: true, Timeout: time.Second}, nil)
	if err != nil {
		d.Fatal(err)
	}
	return u
}

func (d *dropping) route(list ...Namespace) {
	d.Helper()
	if err := d.e.Route(list, nil); err != nil {
		d.Fatal(err)
	}
}

// otherAnswers has the second store answer what it was asked, and returns how many ops that were.
func (d *dropping) otherAnswers(r cache.Result) (n int) {
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

// dropped fails unless the second store can be dropped, or cannot.
func (d *dropping) dropped(want bool) {
	d.Helper()
	if got := d.e.DropStore(d.other); got != want {
		d.Fatalf("the store is dropped: %v, want %v", got, want)
	}
}

func (d *dropping) granted(id uint64) protocol.Grant {
	d.Helper()
	m := d.k.last(d)
	g, err := m.Grant()
	if m.Code != protocol.OK || m.ID != id || err != nil {
		d.Fatal(m.ID, m.Code, err)
	}
	return g
}

// A waiter that waits to ask a store again follows its key when that moves.
func TestAStoreIsDroppedBehindAWaiter(t *testing.T) {
	d := newDropping(t)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"), Wait: protocol.WaitAlways})
	if d.otherAnswers(cache.Result{Status: cache.Refused}) != 1 {
		t.Fatal("the store was not asked")
	}
	d.dropped(false) // its keys are routed to it
	d.route(Namespace{})
	d.dropped(true)
	d.now.Add(int64(2 * time.Second))
	d.e.Tick()
	d.answer()
	d.granted(7)
}

// An acquire-many asks for each key where that belongs when its turn comes.
func TestAStoreIsDroppedBehindAnAcquireMany(t *testing.T) {
	d := newDropping(t)
	g := d.acquire("a", 30*time.Second)
	send(d.s, &protocol.Request{Op: protocol.OpAcquireMany, ID: 9, Owner: 3, Keys: [][]byte{[]byte("a"), []byte("o:k")},
		Wait: protocol.WaitAlways, TTL: 30000})
	if d.otherAnswers(cache.Result{Status: cache.Granted, Base: 5}) != 2 {
		t.Fatal("the second key was not tried and given back")
	}
	d.route(Namespace{})
	d.dropped(true)
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("a"), Fence: g.Fence})
	d.answer()
	m := d.k.last(t)
	if gs, err := m.Grants(); m.Code != protocol.OK || m.ID != 9 || err != nil || len(gs) != 2 {
		t.Error(m.ID, m.Code, gs, err)
	}
}

// A user that may not use a key any more does not get it from the queue, nor with others.
func TestAReloadChecksWaitersAgain(t *testing.T) {
	d := newDropping(t)
	d.s.peer.UID = 1000
	g := d.acquire("a", 30*time.Second)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Owner: 1, Key: []byte("a"), Wait: protocol.WaitAlways})
	d.route(Namespace{Users: []int{1001}})
	if m := d.k.last(t); m.ID != 7 || m.Code != protocol.Denied {
		t.Fatal(m.ID, m.Code)
	}
	d.route(Namespace{})
	send(d.s, &protocol.Request{Op: protocol.OpAcquireMany, ID: 9, Owner: 3, Keys: [][]byte{[]byte("a"), []byte("b")}, Wait: protocol.WaitAlways})
	d.answer()
	d.route(Namespace{}, Namespace{Prefix: "b", Users: []int{1001}})
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("a"), Fence: g.Fence})
	d.answer()
	if m := d.k.last(t); m.ID != 9 || m.Code != protocol.Denied {
		t.Error(m.ID, m.Code)
	}
}

// A semaphore of which permits are held at a store that is left moves, and can be inspected, once
// they are released.
func TestAStoreIsDroppedBehindASemaphore(t *testing.T) {
	d := newDropping(t)
	next := d.add("next")
	permit := protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"), Mode: protocol.Permit, Permits: 2, Wait: protocol.WaitAlways}
	send(d.s, &permit)
	d.otherAnswers(cache.Result{Status: cache.Granted, Base: 5})
	g := d.granted(7)
	d.route(Namespace{}, Namespace{Prefix: "o:", Store: "next"})
	d.dropped(false)
	left := d.other
	d.other = next
	permit.ID = 8
	send(d.s, &permit)
	if d.otherAnswers(cache.Result{Status: cache.Granted, Base: 6}) != 1 {
		t.Fatal("the second permit is not asked of the present store")
	}
	d.other = left
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("o:k"), Fence: g.Fence})
	d.otherAnswers(cache.Result{Status: cache.Done})
	d.dropped(true)
	send(d.s, &protocol.Request{Op: protocol.OpInspect, ID: 10, Key: []byte("o:k"), Mode: protocol.Permit})
	if m := d.k.last(t); m.ID != 10 || m.Code != protocol.OK {
		t.Error(m.ID, m.Code)
	}
}

// No store gets the number of one that has gone.
func TestStoreNumbersAreNotUsedTwice(t *testing.T) {
	d := newDropping(t)
	seen := map[int]bool{d.u.core.ID: true, d.other.core.ID: true}
	d.route(Namespace{})
	d.dropped(true)
	for range 200 {
		d.other = d.add("other")
		if id := d.other.core.ID; seen[id] {
			t.Fatalf("number %d comes again", id)
		}
		seen[d.other.core.ID] = true
		d.dropped(true)
	}
}

// A refused change of routes leaves limits as they were.
func TestARefusedRouteChangesNoLimit(t *testing.T) {
	d := newDropping(t)
	d.route(Namespace{MaxHolds: 10})
	if d.e.Route([]Namespace{{MaxHolds: 1}, {Prefix: "x:", Store: "none"}}, nil) == nil {
		t.Fatal("a route to a store that is not there")
	}
	if n := d.e.routes.Load().spaces[""].table.Use.MaxHolds.Load(); n != 10 {
		t.Errorf("the limit is %d", n)
	}
}

// A namespace for what was only a class of another counts for itself.
func TestANamespaceInPlaceOfAClassHasLimitsOfItsOwn(t *testing.T) {
	d := newDropping(t)
	if err := d.e.Route([]Namespace{{MaxWaiters: 10}}, []Class{{Name: "orders", Prefix: "order:"}}); err != nil {
		t.Fatal(err)
	}
	d.route(Namespace{MaxWaiters: 10}, Namespace{Prefix: "order:", MaxWaiters: 1})
	all := d.e.routes.Load().spaces
	if a, b := all[""].table.Use, all["order:"].table.Use; a == b || a.MaxWaiters.Load() != 10 || b.MaxWaiters.Load() != 1 {
		t.Errorf("limits %d and %d, of the same: %v", a.MaxWaiters.Load(), b.MaxWaiters.Load(), a == b)
	}
}
