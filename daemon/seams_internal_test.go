package daemon

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// A class becomes a namespace in a reload: that shares its limits with the one that the class was part of.
func TestANamespaceThatWasAClassSharesItsLimits(t *testing.T) {
	d := newDropping(t)
	route := func(list []Namespace, classes ...Class) {
		if err := d.e.Route(list, classes); err != nil {
			t.Fatal(err)
		}
	}
	route([]Namespace{{}}, Class{"a", "a:"})
	route([]Namespace{{MaxHolds: 1}, {Prefix: "a:", MaxHolds: 1}}, Class{"a", "a:"})
	all := d.e.routes.Load()
	if all.spaces[""].table.Use == all.spaces["a:"].table.Use {
		t.Error("two namespaces count together")
	}
	d.acquire("k", 30*time.Second)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 6, Key: []byte("a:k"), TTL: 30000})
	d.answer()
	if m := d.k.last(t); m.Code != protocol.OK {
		t.Error(m.Code)
	}
}

// A renewal and a release between DropStore's look at the lanes and its look at the tables: the answer to
// the renewal comes after the store has been forgotten.
func TestDropStoreLooksAtTheLanesTooEarly(t *testing.T) {
	d := newDropping(t)
	key := "o:k"
	for i := 0; shardOf(key) == 0; i++ {
		key += "x"
	}
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte(key), TTL: 30000})
	d.otherAnswers(cache.Result{Status: cache.Granted, Base: 5})
	g := d.granted(7)
	d.route(Namespace{})

	sh := d.e.lock(0) // DropStore is stopped between its two looks
	done := make(chan bool)
	go func() { done <- d.e.DropStore(d.other) }()
	time.Sleep(100 * time.Millisecond)
	send(d.s, &protocol.Request{Op: protocol.OpRenew, ID: 8, Key: []byte(key), Fence: g.Fence})
	renewal := d.other.renewals.Next()
	if renewal == nil {
		t.Fatal("no renewal")
	}
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 9, Key: []byte(key), Fence: g.Fence})
	d.otherAnswers(cache.Result{Status: cache.Done})
	sh.mu.Unlock()
	if !<-done {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("the daemon panics: %v", r)
		}
	}()
	renewal.Sent = d.now.Load()
	renewal.Results[0] = cache.Result{Status: cache.NotHeld}
	d.e.Deliver(renewal)
}

// A store's goroutines end after it has been dropped. What they say last makes tables remember it, and no
// takeover is possible any more.
func TestLateNewsOfADroppedStore(t *testing.T) {
	d := newDropping(t)
	d.acquire("k", 30*time.Second)
	d.route(Namespace{})
	d.dropped(true)
	d.e.StoreDown(d.other, errors.New("down")) // its pump is closed after DropStore: see stores.endEmpty
	image, _, err := d.e.Image()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newBeating(t).e.Take(image); err != nil {
		t.Error(err)
	}
}

// A successor whose configuration requires a heartbeat ends holds whose stated validity is not over.
func TestATakeoverThatRequiresAHeartbeat(t *testing.T) {
	d := newBeating(t)
	g := d.acquire("k", 30*time.Second)
	d.now.Add(int64(8 * time.Second)) // the client has nothing to say meanwhile
	image, _, err := d.e.Image()
	if err != nil {
		t.Fatal(err)
	}
	next := newBeating(t)
	next.now.Store(d.now.Load())
	if err := next.e.Route([]Namespace{{TTL: 30 * time.Second, Heartbeat: 5 * time.Second}}, nil); err != nil {
		t.Fatal(err)
	}
	next.e.End(next.s)
	ss, err := next.e.Take(image)
	if err != nil {
		t.Fatal(err)
	}
	ss[0].Carry(&sink{s: ss[0]})
	next.e.Reroute()
	for range 300 {
		next.now.Add(int64(20 * time.Millisecond))
		next.e.Tick()
	}
	if now := next.now.Load() / int64(time.Millisecond); uint64(now) < g.Deadline && ss[0].core.Holds.Load() == 0 {
		t.Errorf("the hold is lost %v before the end of what was stated", time.Duration(int64(g.Deadline)-now)*time.Millisecond)
	}
}

// A question about a key's holders that waits for its turn while the key moves and the store is dropped is
// answered: nobody holds it.
func TestHoldersOfAKeyWhoseStoreWasDropped(t *testing.T) {
	d := newDropping(t)
	var put func(func(*Unit) upstream.Lister)
	d.e.ask = func(q func(func(*Unit) upstream.Lister)) { put = q }
	send(d.s, &protocol.Request{Op: protocol.OpInspect, ID: 7, Key: []byte("o:k"), Flags: protocol.FlagHolders})
	d.route(Namespace{}) // other hosts use the key at the other store now
	d.dropped(true)
	asked := false
	put(func(u *Unit) upstream.Lister {
		asked = asked || u == d.u
		return nil // as stores.lister says of one that has gone
	})
	m := d.k.last(t)
	st, _ := m.State()
	if m.Code == protocol.OK && st.Held == protocol.HeldNot && !asked {
		t.Errorf("answered %d: not held, and no store was asked", m.ID)
	}
}

// A successor without linger takes over a lease that lingers: used again, it wakes the table without end.
func TestATakeoverThatTakesLingerAway(t *testing.T) {
	d, next := newDropping(t), newDropping(t)
	route := func(d *dropping, linger time.Duration) {
		d.route(Namespace{}, Namespace{Prefix: "o:", Store: "other", Linger: linger})
	}
	route(d, 2*time.Second)
	acquire := func(d *dropping, k *sink, s *Session) protocol.Grant {
		send(s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"), TTL: 30000})
		d.otherAnswers(cache.Result{Status: cache.Granted, Base: uint64(d.now.Load())})
		m := k.last(t)
		g, err := m.Grant()
		if m.ID != 7 || err != nil {
			t.Fatal(m.ID, m.Code, err)
		}
		return g
	}
	for range 3 {
		g := acquire(d, d.k, d.s)
		send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("o:k"), Fence: g.Fence})
		d.otherAnswers(cache.Result{Status: cache.Done})
		d.now.Add(int64(100 * time.Millisecond))
	}
	image, _, err := d.e.Image()
	if err != nil {
		t.Fatal(err)
	}
	next.now.Store(d.now.Load())
	route(next, 0)
	next.e.End(next.s)
	ss, err := next.e.Take(image)
	if err != nil {
		t.Fatal(err)
	}
	k := &sink{s: ss[0]}
	ss[0].Carry(k)
	next.e.Reroute()
	acquire(next, k, ss[0])
	next.now.Add(int64(3 * time.Second))
	n := 0
	for ; n < 1000 && next.e.Tick() <= next.now.Load()+1; n++ {
		next.now.Add(1)
	}
	if n == 1000 {
		t.Error("Tick wants to be called again at once, a thousand times over")
	}
}
