package daemon_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// inMemory is one more embedded store; it is closed with the test.
func inMemory(t testing.TB) upstream.Store {
	t.Helper()
	s, err := embedded.Open(embedded.Options{Clock: renewer.Boottime})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// spaces starts a daemon on two stores, with these namespaces beside the default one.
func spaces(t *testing.T, list ...engine.Namespace) (*host, upstream.Store) {
	t.Helper()
	second := inMemory(t)
	h := start(t, nil, func(c *daemon.Config) {
		c.Stores = append(c.Stores, daemon.StoreConfig{Name: "second", Store: second, Close: func() {
			_ = second.Close()
		}})
		c.Namespaces = append([]engine.Namespace{{Store: "store"}}, list...)
	})
	return h, second
}

// heldIn says whether a store knows that the key is held.
func heldIn(t *testing.T, s upstream.Store, key string) bool {
	t.Helper()
	res := make([]upstream.Result, 1)
	if err := s.Apply(t.Context(), []upstream.Op{{Kind: cache.OpPeek, Key: key}}, res); err != nil {
		t.Fatal(err)
	}
	return res[0].Status == cache.Busy
}

func TestTheLongestPrefixDecides(t *testing.T) {
	h, second := spaces(t, engine.Namespace{Prefix: "a", Store: "second"},
		engine.Namespace{Prefix: "a:b:", Store: "store"})
	c := h.dial(client.Options{})
	for key, in := range map[string]upstream.Store{"x": h.store, "a": second, "a:b": second,
		"a:b:c": h.store} {
		acquire(t, c, client.AcquireArgs{Key: key})
		for _, s := range []upstream.Store{h.store, second} {
			if held := heldIn(t, s, key); held != (s == in) {
				t.Errorf("%s: held there %v, should be %v", key, held, s == in)
			}
		}
	}
	var seen []string
	for _, n := range c.Welcome().Namespaces {
		seen = append(seen, n.Prefix)
	}
	if strings.Join(seen, ",") != ",a,a:b:" {
		t.Errorf("the welcome names %q", seen)
	}
}

func TestAHoldHasAnEnd(t *testing.T) {
	h, _ := spaces(t, engine.Namespace{Prefix: "a", Store: "second", MaxHold: 50 * time.Millisecond})
	lost := make(chan client.Lost, 9)
	c, d := h.dial(client.Options{OnLost: func(l client.Lost) { lost <- l }}), h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "a"})
	acquire(t, c, client.AcquireArgs{Key: "b"})
	if g.End == 0 || g.End > g.Deadline+1 && g.End == 0 {
		t.Errorf("the grant does not say when it ends: %+v", g)
	}
	if renewed, err := c.Renew(t.Context(), "a", 0, g.Fence, time.Minute); err == nil &&
		renewed.End != g.End {
		t.Errorf("a renewal has moved the end from %d to %d", g.End, renewed.End)
	}
	next := acquire(t, d, client.AcquireArgs{Key: "a", Wait: client.Forever})
	if next.Fence <= g.Fence {
		t.Error("the fence has not risen")
	}
	if l := <-lost; l.Key != "a" || l.Reason != protocol.LostTooLong {
		t.Errorf("%+v", l)
	}
}

func TestASilentClientLosesWhatAsksForHeartbeats(t *testing.T) {
	t.Parallel()
	h, _ := spaces(t, engine.Namespace{Prefix: "a", Store: "second", Heartbeat: time.Second})
	// This one does not answer keepalives: it is written from the protocol, by hand.
	raw := h.raw().hello()
	raw.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte("a")})
	raw.send(&protocol.Request{Op: protocol.OpAcquire, ID: 3, Key: []byte("b")})
	var left uint64
	for {
		m := raw.next()
		if m.ID == 2 {
			g, err := m.Grant()
			if err != nil {
				t.Fatal(err)
			}
			left = g.Left
		}
		if m.Event == protocol.EventLost {
			key, _, _, reason, err := m.Lost()
			if err != nil || key != "a" || reason != protocol.LostSilent {
				t.Fatal(key, reason, err)
			}
			break
		}
	}
	if left > 1000 {
		t.Errorf("it was stated to be valid for %d ms", left)
	}
	acquire(t, h.dial(client.Options{}), client.AcquireArgs{Key: "a"})
}

// keepalives has the pushes to a client that has a hold with a heartbeat of patience.
type keepalives struct {
	heard chan client.Keepalive
	lost  chan client.Lost
}

// patience is a heartbeat that a machine which stands still for a moment does not miss.
const patience = 3 * time.Second

func newBeats() *keepalives {
	return &keepalives{make(chan client.Keepalive, 100), make(chan client.Lost, 1)}
}

func (b *keepalives) options() client.Options {
	return client.Options{OnKeepalive: func(x client.Keepalive) { b.heard <- x },
		OnLost: func(l client.Lost) { b.lost <- l }}
}

// beyond waits for a keepalive that shows that a whole heartbeat has passed since a grant.
func (b *keepalives) beyond(t *testing.T, g protocol.Grant) {
	t.Helper()
	for {
		select {
		case x := <-b.heard:
			if x.Until > g.Deadline+uint64((patience+time.Second)/time.Millisecond) {
				return
			}
		case l := <-b.lost:
			t.Fatalf("lost: %+v", l)
		}
	}
}

func TestAClientThatAnswersKeepalivesKeepsHoldsThatRequireHeartbeats(t *testing.T) {
	t.Parallel()
	h, _ := spaces(t, engine.Namespace{Prefix: "a", Store: "second", Heartbeat: patience})
	b := newBeats()
	c := h.dial(b.options())
	g := acquire(t, c, client.AcquireArgs{Key: "a"})
	b.beyond(t, g)
	release(t, c, "a", 0, g.Fence)
}

// A client that connected before a reload requires a heartbeat answers keepalives all the same, and
// keeps its holds for longer than the validity that was stated before the reload.
func TestAHeartbeatThatAReloadAddsCostsNoHolds(t *testing.T) {
	t.Parallel()
	h := start(t, nil, nil)
	b := newBeats()
	c := h.dial(b.options())
	g := acquire(t, c, client.AcquireArgs{Key: "a"})
	next := serving(h.store)
	next.Namespaces = []engine.Namespace{{Store: "store", Heartbeat: patience}}
	if err := h.d.Reload(next); err != nil {
		t.Fatal(err)
	}
	b.beyond(t, g)
	release(t, c, "a", 0, g.Fence)
}

// A session that only waits has no keepalives to answer: its silence counts from the grant on.
func TestAClientThatHasWaitedSilentlyIsNotSilentYet(t *testing.T) {
	t.Parallel()
	h, _ := spaces(t, engine.Namespace{Prefix: "a", Store: "second", Heartbeat: patience})
	b := newBeats()
	holder := h.dial(b.options())
	held := acquire(t, holder, client.AcquireArgs{Key: "a"})
	raw := h.raw().hello()
	raw.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte("a"),
		Wait: protocol.WaitAlways})
	b.beyond(t, held) // it has been silent for longer than it may
	release(t, holder, "a", 0, held.Fence)
	m := raw.next()
	g, err := m.Grant()
	if err != nil || m.ID != 2 {
		t.Fatal(m, err)
	}
	if most := uint64(patience / time.Millisecond); g.Left < most-1000 || g.Left > most {
		t.Errorf("it was stated to be valid for %d ms", g.Left)
	}
}

func TestLimitsOfANamespace(t *testing.T) {
	h, _ := spaces(t, engine.Namespace{Prefix: "a", Store: "second", MaxHolds: 2})
	c, d := h.dial(client.Options{}), h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "a1"})
	acquire(t, d, client.AcquireArgs{Key: "a2"})
	if _, err := d.Acquire(t.Context(), client.AcquireArgs{Key: "a3",
		Wait: client.Forever}); !errors.Is(err, client.ErrLimit) {
		t.Errorf("one too many: %v", err)
	}
	acquire(t, d, client.AcquireArgs{Key: "b"})
	release(t, c, "a1", 0, g.Fence)
	acquire(t, c, client.AcquireArgs{Key: "a3"})
}

func TestWhoMayUseANamespace(t *testing.T) {
	me := os.Getuid()
	h, _ := spaces(t, engine.Namespace{Prefix: "mine:", Store: "second", Users: []int{me}},
		engine.Namespace{Prefix: "not:", Store: "second", Users: []int{me + 1}},
		engine.Namespace{Prefix: "group:", Store: "second", Groups: []int{os.Getgid()}})
	c := h.dial(client.Options{})
	acquire(t, c, client.AcquireArgs{Key: "mine:1"})
	acquire(t, c, client.AcquireArgs{Key: "group:1"})
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "not:1"}); !errors.Is(err,
		client.ErrDenied) {
		t.Errorf("acquire: %v", err)
	}
	if _, err := c.Inspect(t.Context(), "not:1"); !errors.Is(err, client.ErrDenied) {
		t.Errorf("inspect: %v", err)
	}
	if _, err := c.AcquireMany(t.Context(), []string{"mine:2", "not:1"},
		client.AcquireArgs{}); !errors.Is(err, client.ErrDenied) {
		t.Errorf("acquire-many: %v", err)
	}
	for _, n := range c.Welcome().Namespaces {
		if n.Prefix == "not:" {
			t.Error("the welcome names what this user may not use")
		}
	}
}

// keys of different stores in one acquire-many, in an order that is the same for
// everybody.
func TestAcquireManyOverStores(t *testing.T) {
	h, _ := spaces(t, engine.Namespace{Prefix: "a", Store: "second", TTL: 20 * time.Second})
	c := h.dial(client.Options{})
	keys := []string{"b", "a1", "c", "a2"}
	gs, err := c.AcquireMany(t.Context(), keys, client.AcquireArgs{})
	if err != nil || len(gs) != 4 {
		t.Fatal(gs, err)
	}
	var fences []uint64
	for _, g := range gs {
		fences = append(fences, g.Fence)
	}
	if codes, err := c.ReleaseMany(t.Context(), keys, fences, client.ReleaseArgs{}); err != nil ||
		len(codes) != 4 {
		t.Fatal(codes, err)
	}
}

// A reload moves keys. A held lease stays where it is, later acquires use the new store, and the
// old store is closed once it is empty.
func TestReloadMovesKeys(t *testing.T) {
	first, second := inMemory(t), inMemory(t)
	closed := make(chan string, 9)
	store := func(name string, s upstream.Store) daemon.StoreConfig {
		return daemon.StoreConfig{Name: name, Store: s, Close: func() {
			_ = s.Close()
			closed <- name
		}}
	}
	base := inMemory(t)
	h := start(t, base, func(c *daemon.Config) {
		c.Stores = append(c.Stores, store("first", first))
		c.Namespaces = []engine.Namespace{{Store: "store"}, {Prefix: "a", Store: "first"}}
	})
	c, d := h.dial(client.Options{}), h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "a"})
	next := daemon.Serving{Stores: []daemon.StoreConfig{{Name: "store", Store: base},
		store("first", second)},
		Namespaces: []engine.Namespace{{Store: "store"}, {Prefix: "a", Store: "first"}}}

	bad := next
	bad.Namespaces = []engine.Namespace{{Store: "nowhere"}}
	if err := h.d.Reload(bad); err == nil {
		t.Fatal("a store that is not there is taken")
	}
	if err := h.d.Reload(next); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Acquire(t.Context(), client.AcquireArgs{Key: "a"}); !errors.Is(err,
		client.ErrBusy) {
		t.Fatalf("the old hold does not keep others out: %v", err)
	}
	granted := make(chan protocol.Grant)
	go func() {
		g, err := d.Acquire(t.Context(), client.AcquireArgs{Key: "a", Wait: client.Forever})
		if err != nil {
			t.Error(err)
		}
		granted <- g
	}()
	eventually(t, "it queues", func() bool {
		s, err := c.Inspect(t.Context(), "a")
		return err == nil && s.Waiters == 1
	})
	if _, err := c.Renew(t.Context(), "a", 0, g.Fence, 0); err != nil {
		t.Fatal(err)
	}
	release(t, c, "a", 0, g.Fence)
	<-granted
	if name := <-closed; name != "first" {
		t.Fatal(name)
	}
	if !heldIn(t, second, "a") {
		t.Error("it is not held in the new store")
	}
}

// used notes whether anybody uses a store after its end.
type used struct {
	upstream.Store
	over  atomic.Bool
	after atomic.Int64
}

func (*used) Capabilities() (none upstream.Capabilities) { return none }

func (u *used) note() {
	if u.over.Load() {
		u.after.Add(1)
	}
}

func (u *used) Ping(ctx context.Context) error {
	defer u.note() // even if it began before
	return u.Store.Ping(ctx)
}

func (u *used) Info() upstream.Info {
	u.note()
	i := u.Store.Info()
	i.Queue = false // nothing can linger there
	return i
}

// A reload is refused after its new store was added: when Reload returns, nothing uses the store
// any more, and closing it is left to the caller.
func TestARefusedReloadLeavesItsNewStoreAlone(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "k"})
	for range 20 {
		second := &used{Store: inMemory(t)}
		next := serving(h.store)
		next.Stores = append(next.Stores, daemon.StoreConfig{Name: "second", Store: second,
			Close: func() { t.Error("the daemon closes a store that it has refused") }})
		next.Namespaces = []engine.Namespace{{Store: "store"},
			{Prefix: "a", Store: "second", Linger: time.Second}}
		if err := h.d.Reload(next); err == nil || !strings.Contains(err.Error(), "linger") {
			t.Fatal(err)
		}
		second.over.Store(true)
		if err := second.Close(); err != nil {
			t.Error(err)
		}
		if n := second.after.Load(); n != 0 {
			t.Errorf("it was used %d times after Reload had returned", n)
		}
	}
	if n := len(h.d.Engine().Stores()); n != 1 {
		t.Errorf("%d stores", n)
	}
	release(t, c, "k", 0, g.Fence)
}

// A store that is on its way out is closed once it is empty, though a reload fails
// meanwhile.
func TestAFailedReloadKeepsNoStoreThatLeaves(t *testing.T) {
	closed := make(chan string, 9)
	leaves := inMemory(t)
	base := inMemory(t)
	h := start(t, base, func(c *daemon.Config) {
		c.Stores = append(c.Stores, daemon.StoreConfig{Name: "leaves", Store: leaves, Close: func() {
			_ = leaves.Close()
			closed <- "leaves"
		}})
		c.Namespaces = []engine.Namespace{{Store: "store"}, {Prefix: "a", Store: "leaves"}}
	})
	c := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "a"})
	next := serving(base)
	if err := h.d.Reload(next); err != nil {
		t.Fatal(err)
	}
	next.Namespaces = []engine.Namespace{{Store: "nowhere"}}
	if err := h.d.Reload(next); err == nil {
		t.Fatal("a store that is not there is taken")
	}
	release(t, c, "a", 0, g.Fence)
	select {
	case <-closed:
	case <-time.After(bound):
		t.Error("it is never closed")
	}
}

func TestReloadChangesPolicies(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	acquire(t, c, client.AcquireArgs{Key: "k"})
	next := serving(h.store)
	next.Namespaces = []engine.Namespace{{Store: "store", MaxHold: 50 * time.Millisecond}}
	next.Limits.MaxHolds = 1
	if err := h.d.Reload(next); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "l"}); !errors.Is(err,
		client.ErrLimit) {
		t.Errorf("the new limit does not count: %v", err)
	}
	d := h.dial(client.Options{})
	g := acquire(t, d, client.AcquireArgs{Key: "m"})
	if g.End == 0 {
		t.Error("the new longest hold does not count")
	}
}
