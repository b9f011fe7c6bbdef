package engine

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// ahead is a base far above the clock.
const ahead = 4_000_000_000_000_000

// base acquires a key of the first store, or of the second, which answers with the base and
// otherwise with one above the floor. It releases the key, and returns the base of the fence.
func (d *twoStores) base(key string, second uint64) uint64 {
	d.Helper()
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte(key),
		Wait: protocol.WaitAlways})
	d.answer()
	d.otherGives(second)
	fence := d.granted(7).Fence
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 8, Key: []byte(key), Fence: fence})
	d.answer()
	d.otherAnswers(cache.Result{Status: cache.Done})
	if m := d.k.last(d); m.ID != 8 || m.Code != protocol.OK {
		d.Fatal(m.ID, m.Code)
	}
	return fence >> 10
}

// otherGives answers every op of the second store with a base above its floor, and with the given
// one at least.
func (d *twoStores) otherGives(least uint64) {
	for p := d.other.main.Next(); p != nil; p = d.other.main.Next() {
		p.Sent = d.now.Load()
		for i := range p.Ops {
			p.Results[i] = cache.Result{Status: cache.Granted, Base: max(least, p.Ops[i].Floor+1)}
		}
		d.e.Deliver(p)
		d.other.main.Done(p)
	}
}

var away = []Namespace{{}, {Prefix: "o:", Store: "other"}}

// A reload moves keys that nobody holds. The fences of this host rise nevertheless, in every way in
// which a configuration can route keys elsewhere.
func TestFencesRiseOverAReloadThatMovesKeys(t *testing.T) {
	class := []Class{{Name: "c", Prefix: "o:k"}}
	for name, x := range map[string]struct {
		was, is        []Namespace
		before, after  []Class
		thereAndBack   bool
		alsoByTakeover bool
	}{
		"another store":    {was: away, is: []Namespace{{}, {Prefix: "o:"}}, alsoByTakeover: true},
		"a namespace goes": {was: away, is: []Namespace{{}}, alsoByTakeover: true},
		"a namespace is added": {was: []Namespace{{Store: "other"}},
			is: []Namespace{{Store: "other"}, {Prefix: "o:"}}, alsoByTakeover: true},
		"a longer prefix": {was: away, is: []Namespace{{}, {Prefix: "o:", Store: "other"},
			{Prefix: "o:k"}}},
		"in a circle":    {was: away, is: []Namespace{{Store: "other"}, {Prefix: "o:"}}},
		"with classes":   {was: away, is: []Namespace{{}}, before: class, after: class},
		"a class begins": {was: away, is: []Namespace{{}}, after: class},
		"a class ends":   {was: away, is: []Namespace{{}}, before: class},
	} {
		for _, takeover := range []bool{false, true}[:1+map[bool]int{true: 1}[x.alsoByTakeover]] {
			t.Run(fmt.Sprint(name, " by takeover ", takeover), func(t *testing.T) {
				d := newTwoStores(t)
				if err := d.e.Route(x.was, x.before); err != nil {
					t.Fatal(err)
				}
				was := d.base("o:k", ahead)
				if was != ahead {
					t.Fatalf("the base is %d", was)
				}
				if takeover {
					next := newTwoStores(t)
					next.route(x.is...)
					d = d.passTo(next)
				} else if err := d.e.Route(x.is, x.after); err != nil {
					t.Fatal(err)
				}
				if is := d.base("o:k", 1); is <= was {
					t.Errorf("base %d after %d", is, was)
				}
			})
		}
	}
}

// passTo has another process take over, with its own configuration.
func (d *twoStores) passTo(next *twoStores) *twoStores {
	next.now.Store(d.now.Load())
	next.s = d.takenOver(next.beating)
	next.k = next.s.transport.(*sink)
	return next
}

// Keys pass a store with an order of its own, whose fences cannot be raised. They rise again at the
// store after it.
func TestFencesRiseBehindAStoreWithItsOwnOrder(t *testing.T) {
	for _, takeover := range []bool{false, true} {
		withOwn := func() *twoStores {
			d := newTwoStores(t)
			if _, err := d.e.AddStore("own", upstream.Info{Queue: true}, nil); err != nil {
				t.Fatal(err)
			}
			return d
		}
		d, own := withOwn(), []Namespace{{}, {Prefix: "o:", Store: "own"}}
		was := d.base("o:k", ahead)
		d.route(own...)
		if takeover {
			next := withOwn()
			next.route(own...)
			d = d.passTo(next)
		}
		d.route(Namespace{})
		if is := d.base("o:k", 1); is <= was {
			t.Errorf("takeover %v: base %d after %d", takeover, is, was)
		}
	}
}

// A lower fence_epoch lowers the fences of a store with its own order. They rise again at the next
// store.
func TestFencesRiseBehindALowerEpoch(t *testing.T) {
	d := newTwoStores(t)
	own, err := d.e.AddStore("own", upstream.Info{Queue: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.other = own
	var falls []string
	d.e.Observe(onFall{fall: func(prefix, store string, base uint64) {
		falls = append(falls, fmt.Sprint(prefix, " ", store, " ", base))
	}})
	at := func(epoch uint64) { d.route(Namespace{}, Namespace{Prefix: "o:", Store: "own", FenceEpoch: epoch}) }
	at(ahead)
	was := d.base("o:k", 70)
	at(ahead + 1)
	if len(falls) > 0 {
		t.Error("a higher epoch: ", falls)
	}
	at(0)
	if want := fmt.Sprint("[o: own ", was+1, "]"); fmt.Sprint(falls) != want {
		t.Errorf("a lower epoch: %v, want %s", falls, want)
	}
	d.route(Namespace{})
	if is := d.base("o:k", 1); is <= was {
		t.Errorf("base %d after %d", is, was)
	}
	if len(falls) != 1 {
		t.Error("a store whose bases can be raised: ", falls)
	}
}

// A reload to a store that does not continue from the fences of this host is reported with the
// largest base.
func TestAReloadAfterWhichFencesCanFallIsReported(t *testing.T) {
	d := newTwoStores(t)
	if _, err := d.e.AddStore("own", upstream.Info{Queue: true}, nil); err != nil {
		t.Fatal(err)
	}
	var falls []string
	d.e.Observe(onFall{fall: func(prefix, store string, base uint64) {
		falls = append(falls, fmt.Sprint(prefix, " ", store, " ", base))
	}})
	reports := func(what string, want ...string) {
		t.Helper()
		if fmt.Sprint(falls) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, falls, want)
		}
		falls = nil
	}
	to := func(n Namespace) {
		t.Helper()
		n.Prefix = "o:"
		if err := d.e.Route([]Namespace{{}, n}, []Class{{Name: "c", Prefix: "o:c"}}); err != nil {
			t.Fatal(err)
		}
	}
	to(Namespace{Store: "own"})
	reports("nothing has been granted")
	to(Namespace{Store: "other"})
	was := d.base("o:k", ahead)
	to(Namespace{Store: "own", FenceEpoch: was})
	reports("fence_epoch is high enough")
	to(Namespace{Store: "other"})
	to(Namespace{Store: "own", FenceEpoch: was - 1})
	reports("fence_epoch is too low", fmt.Sprint("o: own ", was))
	to(Namespace{Store: "other"})
	d.other.parts.Store(&[]Part{{Name: "a", Place: "a"}, {Name: "b", Place: "b"}})
	d.e.StoreNamed("own").parts.Store(&[]Part{{Name: "b", Place: "b"}})
	to(Namespace{Store: "own"})
	reports("they have a store in common")
	d.e.StoreNamed("own").parts.Store(nil)
	to(Namespace{Store: "other"})
	d.base("o:k", 8_000_000_000_000_000)
	to(Namespace{})
	reports("a base that is out of range", "o:  8000000000000000")
	if is := d.base("o:k", 1); is > ahead*3/2 {
		t.Errorf("the next store has base %d", is)
	}
}

// Keys have come from a store with higher bases, and their floor has not been used yet when they
// move to a pair of stores. Their present store is the old one of the pair, and the new one decides
// fences itself. So the fences can fall.
func TestACarriedFloorFromWhichAPairDoesNotContinueIsReported(t *testing.T) {
	d := newTwoStores(t)
	own, err := d.e.AddStore("own", upstream.Info{Queue: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.e.StoreNamed("").parts.Store(&[]Part{{Name: "b", Place: "b"}})
	own.parts.Store(&[]Part{{Name: "b", Place: "b"}, {Name: "etcd", Place: "etcd"}})
	var falls []string
	d.e.Observe(onFall{fall: func(prefix, store string, base uint64) {
		falls = append(falls, fmt.Sprint(prefix, " ", store, " ", base))
	}})
	was := d.base("o:k", ahead)
	d.route(Namespace{}, Namespace{Prefix: "o:"}) // the floor is carried
	d.route(Namespace{}, Namespace{Prefix: "o:", Store: "own"})
	if want := fmt.Sprint("[o: own ", was, "]"); fmt.Sprint(falls) != want {
		t.Errorf("reported: %v, want %s", falls, want)
	}
}

// A reload lowers fence_epoch, and may change the password of the store with it, whose bases are
// its own order.
func TestALowerEpochIsReportedAlsoWithAnotherPassword(t *testing.T) {
	for _, password := range []bool{false, true} {
		d := newTwoStores(t)
		at := []Part{{Name: "etcd", Place: "etcd"}}
		for _, name := range []string{"own", "again"} {
			sl, err := d.e.AddStore(name, upstream.Info{Queue: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			sl.parts.Store(&at)
		}
		d.other = d.e.StoreNamed("own")
		n := 0
		d.e.Observe(onFall{fall: func(string, string, uint64) { n++ }})
		d.route(Namespace{}, Namespace{Prefix: "o:", Store: "own", FenceEpoch: ahead})
		d.base("o:k", 70)
		next := Namespace{Prefix: "o:", Store: "own"}
		if password {
			next.Store = "again"
		}
		d.route(Namespace{}, next)
		if n != 1 {
			t.Errorf("with another password %v: reported %d times", password, n)
		}
	}
}

// Keys go back from a store with an order of its own to that store and the one before it. Two
// stores apply their fence_epoch themselves.
func TestTheWayBackToAPairIsNotReported(t *testing.T) {
	d := newTwoStores(t)
	etcd := Part{Name: "etcd", Place: "etcd"}
	for name, parts := range map[string][]Part{"alone": {etcd},
		"pair": {{Name: "b", Place: "b"}, etcd}} {
		sl, err := d.e.AddStore(name, upstream.Info{Queue: true, Pair: name == "pair"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		sl.parts.Store(&parts)
	}
	d.e.Observe(onFall{fall: func(prefix, store string, base uint64) {
		t.Errorf("reported: %s %s %d", prefix, store, base)
	}})
	d.other = d.e.StoreNamed("alone")
	d.route(Namespace{}, Namespace{Prefix: "o:", Store: "alone", FenceEpoch: ahead})
	d.base("o:k", 70)
	d.route(Namespace{}, Namespace{Prefix: "o:", Store: "pair"})
}

// Requests come while reloads move their key to and fro between two stores, one of which is an hour
// ahead. No request meets the new routes without the floor that belongs to them.
func TestFencesRiseWhileReloadsMoveAKey(t *testing.T) {
	d := newBeating(t)
	stores := map[*StoreLane]*embedded.Store{d.u: d.store}
	wall := func() time.Time { return time.Now().Add(time.Hour) }
	first, err := embedded.Open(embedded.Options{Clock: d.now.Load,
		Session: 10 * time.Hour, Wall: wall})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	ahead, err := d.e.AddStore("ahead", upstream.Info{Rebase: true, Timeout: time.Second}, first)
	if err != nil {
		t.Fatal(err)
	}
	stores[ahead] = first
	d.u.inline = d.store // before anything is asked
	answer := func() {
		for sl, st := range stores {
			for p := sl.main.Next(); p != nil; p = sl.main.Next() {
				p.Sent = d.now.Load()
				if err := st.Apply(t.Context(), p.Ops, p.Results); err != nil {
					t.Fatal(err)
				}
				d.e.Deliver(p)
				sl.main.Done(p)
			}
		}
	}
	done := make(chan struct{})
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			if err := d.e.Route([]Namespace{{Store: []string{"ahead", ""}[n%2]}}, nil); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer reloads.Wait()
	defer close(done)
	k := &keeper{}
	k.s = d.e.Open(Peer{}, k)
	ask := func(q *protocol.Request) protocol.Message {
		send(k.s, q)
		// a reload may be about to flush it
		for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
			answer()
			if m, ok := k.reply(t, q.ID); ok {
				return m
			}
		}
		t.Fatalf("request %d is not answered", q.ID)
		return protocol.Message{}
	}
	ask(&protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1, MaxVersion: 1})
	last := uint64(0)
	for id := uint64(10); id < 20_000; id += 2 {
		m := ask(&protocol.Request{Op: protocol.OpAcquire, ID: id, Key: []byte("k"),
			Wait: protocol.WaitAlways})
		g, err := m.Grant()
		if err != nil {
			t.Fatal(m.ID, m.Code, err)
		}
		if g.Fence <= last {
			t.Fatalf("fence %d after %d", g.Fence, last)
		}
		last = g.Fence
		ask(&protocol.Request{Op: protocol.OpRelease, ID: id + 1, Key: []byte("k"), Fence: g.Fence})
	}
}

// keeper is a transport that any goroutine may flush: it keeps all messages until one is asked for.
type keeper struct {
	s     *Session
	mu    sync.Mutex // guards the two below
	buf   []byte
	spare []byte
}

func (k *keeper) Flush() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spare = k.s.Swap(k.spare)
	k.buf = append(k.buf, k.spare...)
}
func (k *keeper) Kill()  {}
func (k *keeper) Yield() {}

// reply is the reply to request id, if it has come. It drops all that came before it.
func (k *keeper) reply(t testing.TB, id uint64) (protocol.Message, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		p, rest, ok, err := protocol.Cut(k.buf, protocol.DefaultMaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return protocol.Message{}, false
		}
		m, err := protocol.DecodeMessage(p)
		if err != nil {
			t.Fatal(err)
		}
		if k.buf = rest; m.ID == id {
			return m, true
		}
	}
}
