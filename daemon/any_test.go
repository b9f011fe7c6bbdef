package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func redisStore(t *testing.T, s *testserver.Redis) upstream.Store {
	t.Helper()
	cfg, err := redis.Parse(s.URL() + "?timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	store, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// onePump is a store for which only one goroutine of the pump sends requests: an inspection of the
// key occupier keeps the other one. Otherwise that one could take the first keys of an acquire-any
// before the last one has been added, and the number of batches would be open.
type onePump struct {
	counting
	occupied, free chan struct{}
}

const occupier = "occupier"

func (o *onePump) Info() upstream.Info {
	i := o.counting.Info()
	i.Timeout = time.Hour // for the inspection
	return i
}

func (o *onePump) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	if ops[0].Key == occupier {
		close(o.occupied)
		select {
		case <-o.free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return o.counting.Apply(ctx, ops, results)
}

// A try makes one round trip if the first key is free, and two otherwise, however many keys it has.
// The second one takes all keys that are free, and the others are released in a third one, for
// which the client does not wait.
func TestRoundTripsOfAnAcquireAny(t *testing.T) {
	server := testserver.StartRedis(t)
	store := &onePump{counting: counting{Store: redisStore(t, server)}, occupied: make(chan struct{}),
		free: make(chan struct{})}
	c := start(t, store, nil).dial(client.Options{})
	inspected := make(chan error)
	go func() {
		_, err := c.Inspect(t.Context(), occupier)
		inspected <- err
	}()
	<-store.occupied
	defer func() {
		close(store.free)
		if err := <-inspected; err != nil {
			t.Error(err)
		}
	}()
	other := start(t, redisStore(t, server), nil).dial(client.Options{}) // as on another host
	keys := keysNamed("k", protocol.MaxAny)
	trips := func(ok bool) (n int64, index int, fence uint64) {
		t.Helper()
		store.taking.Store(0)
		index, g, err := c.AcquireAny(t.Context(), keys, client.AcquireArgs{Owner: 1})
		if ok && err != nil || !ok && !errors.Is(err, client.ErrBusy) {
			t.Fatal(err)
		}
		return store.taking.Load(), index, g.Fence
	}
	release := func(index int, fence uint64) {
		t.Helper()
		if _, err := c.Release(t.Context(), client.ReleaseArgs{Key: keys[index], Owner: 1,
			Fence: fence}); err != nil {
			t.Fatal(err)
		}
	}
	n, index, fence := trips(true)
	if n != 1 {
		t.Errorf("%d batches that take locks while all keys are free", n)
	}
	release(index, fence)
	if _, err := other.AcquireMany(t.Context(), keys, client.AcquireArgs{Owner: 2}); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := trips(false); n != 2 {
		t.Errorf("%d batches that take locks while no key is free", n)
	}
	if _, err := other.Release(t.Context(), client.ReleaseArgs{Key: keys[9], Owner: 2,
		Fence: fenceOf(t, other, keys[9]), All: true}); err != nil {
		t.Fatal(err)
	}
	batches := make(map[int64]int)
	for range keys { // each time it begins with the next key
		n, index, fence := trips(true)
		if batches[n]++; index != 9 {
			t.Errorf("key %d", index)
		}
		release(index, fence)
	}
	if batches[1] != 1 || batches[2] != len(keys)-1 {
		t.Errorf("acquires by their batches that take locks, while one key is free: %v", batches)
	}
}

func fenceOf(t *testing.T, c *client.Client, key string) uint64 {
	t.Helper()
	s, err := c.Inspect(t.Context(), key)
	if err != nil || s.Fence == 0 {
		t.Fatal(s, err)
	}
	return s.Fence
}

func keysNamed(name string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint(name, i))
	}
	return keys
}

// On the embedded store, a try takes one key and no other, not even for a moment.
func TestAnAcquireAnyOnTheEmbeddedStoreTakesOneKey(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	keys := keysNamed("k", 16)
	for n := range keys {
		index, _, err := c.AcquireAny(t.Context(), keys, client.AcquireArgs{Owner: uint64(n)})
		if err != nil {
			t.Fatal(index, err)
		}
		if held := h.d.Engine().Held(); held != int64(n+1) {
			t.Fatalf("%d holds after %d grants", held, n+1)
		}
	}
	if _, _, err := c.AcquireAny(t.Context(), keys, client.AcquireArgs{Owner: 99}); !errors.Is(err,
		client.ErrBusy) {
		t.Fatal(err)
	}
	var granted uint64
	for _, s := range h.d.Engine().Totals().Classes {
		granted += s.Acquires[protocol.OK]
	}
	if granted != uint64(len(keys)) {
		t.Errorf("%d grants are counted", granted)
	}
}

// More callers than keys, on several hosts: no key has two holders, every caller gets its turn, and
// nothing is left behind. Some callers give up.
func TestAcquireAnysShareKeys(t *testing.T) {
	server := testserver.StartRedis(t)
	for name, hosts := range map[string][]*host{
		"embedded": {start(t, nil, nil)},
		"redis": {start(t, redisStore(t, server), nil),
			start(t, redisStore(t, server), nil)},
		"redis, lingering": {start(t, redisStore(t, server), lingering("l:")),
			start(t, redisStore(t, server), lingering("l:"))},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := "k"
			if name == "redis, lingering" {
				prefix = "l:"
			}
			shareKeys(t, hosts, keysNamed(prefix, 3))
		})
	}
}

func lingering(prefix string) func(*daemon.Config) {
	return func(c *daemon.Config) {
		c.Namespaces = []engine.Namespace{{Store: "store"},
			{Prefix: prefix, Store: "store", Linger: time.Second}}
	}
}

func shareKeys(t *testing.T, hosts []*host, keys []string) {
	const callers, turns = 6, 20
	holders := make([]atomic.Int32, len(keys))
	var wg sync.WaitGroup
	for i := range callers {
		c := hosts[i%len(hosts)].dial(client.Options{})
		rnd := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for turn := range turns {
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if rnd.IntN(4) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rnd.IntN(2000))*time.Microsecond)
				}
				h, err := c.LockAny(ctx, keys, client.AcquireArgs{Owner: uint64(turn), Wait: client.Forever})
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				n := 0
				for keys[n] != h.Key() {
					n++
				}
				if holders[n].Add(1) != 1 {
					t.Errorf("%s has two holders", h.Key())
				}
				holders[n].Add(-1)
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, h := range hosts {
		eventually(t, "nothing is left", func() bool {
			l := h.d.Engine().Residue()
			return l.Held == 0 && l.Waiting == 0 && l.Counted == 0 || lingers(h)
		})
	}
}

// lingers reports whether all that is left are leases without holds.
func lingers(h *host) bool {
	l := h.d.Engine().Residue()
	return l.Counted == 0 && l.Held == l.Keys && h.d.Engine().Held() == 0
}

// An acquire-any is one span, of the key that it has acquired.
func TestAnAcquireAnyIsOneSpan(t *testing.T) {
	h, spans := traced(t, func(c *daemon.Config) {
		c.Namespaces = []engine.Namespace{{Store: "store"}, {Prefix: "own:", Store: "store"}}
	})
	c := h.dial(client.Options{})
	acquire(t, c, client.AcquireArgs{Key: "a", Owner: 1})
	keys := []string{"a", "own:b"}
	index, g, err := c.AcquireAny(t.Context(), keys, client.AcquireArgs{Owner: 2, Traceparent: here})
	if index != 1 || err != nil {
		t.Fatal(index, err)
	}
	if _, _, err := c.AcquireAny(t.Context(), keys,
		client.AcquireArgs{Owner: 3, Traceparent: here}); !errors.Is(err, client.ErrBusy) {
		t.Fatal(err)
	}
	all := spans(2)
	if s := all[0]; s.Result != "granted" || s.Key != "own:b" || s.Namespace != "own:" || s.Keys != 2 ||
		s.Fence != g.Fence {
		t.Errorf("%+v", s)
	}
	if s := all[1]; s.Result != "busy" || s.Keys != 2 || s.Mode != cache.Exclusive {
		t.Errorf("%+v", s)
	}
}
