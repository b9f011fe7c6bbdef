package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// counting is a store that counts the batches which take locks.
type counting struct {
	upstream.Store
	taking atomic.Int64
}

func (*counting) Capabilities() (none upstream.Capabilities) { return none }

func (c *counting) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	for i := range ops {
		if ops[i].Kind == cache.OpTry || ops[i].Kind == cache.OpJoin {
			c.taking.Add(1)
			break
		}
	}
	return c.Store.Apply(ctx, ops, results)
}

func TestManyKeysTakeNoMoreRoundTripsThanBatches(t *testing.T) {
	cfg, err := redis.Parse(testserver.StartRedis(t).URL() + "?timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	store := &counting{Store: s}
	c := start(t, store, nil).dial(client.Options{})
	keys := make([]string, 200)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	if _, err := c.AcquireMany(t.Context(), keys,
		client.AcquireArgs{Wait: client.Forever}); err != nil {
		t.Fatal(err)
	}
	// The first may go alone while the others come.
	if n := store.taking.Load(); n > 3 {
		t.Errorf("200 keys took %d batches", n)
	}
}

// A multi-acquire that waits holds only keys that come earlier in the order. So none waits without
// end, however the sets of keys overlap. And no two hold a key at once.
func TestMultiAcquiresDoNotWaitForEachOther(t *testing.T) {
	h := start(t, nil, nil)
	const callers, turns, all = 8, 60, 6
	var holders [all]atomic.Int32
	var wg sync.WaitGroup
	for i := range callers {
		c := h.dial(client.Options{})
		rnd := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for range turns {
				var keys []string
				perm := rnd.Perm(all)[:2+rnd.IntN(all-1)]
				for _, k := range perm {
					keys = append(keys, fmt.Sprint("k", k))
				}
				gs, err := c.AcquireMany(t.Context(), keys, client.AcquireArgs{Wait: client.Forever})
				if err != nil {
					t.Error(err)
					return
				}
				fences := make([]uint64, len(gs))
				for n, k := range perm {
					fences[n] = gs[n].Fence
					if holders[k].Add(1) != 1 {
						t.Errorf("k%d has two holders", k)
					}
				}
				for _, k := range perm {
					holders[k].Add(-1)
				}
				if _, err := c.ReleaseMany(t.Context(), keys, fences, client.ReleaseArgs{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A cancel ends the wait whenever it comes.
func TestAMultiAcquireThatIsWithdrawnEnds(t *testing.T) {
	h := start(t, nil, nil)
	holder, c := h.dial(client.Options{}), h.dial(client.Options{})
	acquire(t, holder, client.AcquireArgs{Key: "b"})
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.AcquireMany(ctx, []string{"a", "b", "c"}, client.AcquireArgs{Wait: client.Forever})
			done <- err
		}()
		if _, err := c.Inspect(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-done; err == nil {
			t.Fatal("it was granted")
		}
	}
	eventually(t, "nothing is left", func() bool {
		for _, k := range []string{"a", "c"} {
			if _, err := holder.Acquire(t.Context(), client.AcquireArgs{Key: k, Owner: 9}); err != nil {
				return false
			}
		}
		return true
	})
}

func TestHoldsAreGoodWhileEachIs(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	hs, err := c.LockMany(t.Context(), []string{"z", "a"}, client.AcquireArgs{})
	if err != nil || len(hs) != 2 || hs[0].Key() != "z" || !hs.Valid() {
		t.Fatal(hs, err)
	}
	if err := hs[1].Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if hs.Valid() {
		t.Error("valid without the second")
	}
	if h, err := hs.Watch(t.Context()); h != hs[1] || !errors.Is(err, client.ErrReleased) {
		t.Error(h, err)
	}
	if err := hs.Release(t.Context()); !errors.Is(err, client.ErrReleased) {
		t.Error(err)
	}
	again, err := c.LockMany(t.Context(), []string{"a", "z"}, client.AcquireArgs{Owner: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := again.Watch(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := again.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// With their fences the keys of one acquire-many may be too much for one release-many.
func TestKeysThatJustFitIntoAFrameAreReleased(t *testing.T) {
	c := start(t, nil, nil).dial(client.Options{})
	var keys []string
	for i := range 129 {
		keys = append(keys, fmt.Sprintf("%0500d", i))
	}
	for range 2 {
		hs, err := c.LockMany(t.Context(), keys, client.AcquireArgs{Owner: 1, Wait: client.Forever})
		if err != nil {
			t.Fatal(err)
		}
		if err := hs.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The same when a grant comes that nobody waits for any more.
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if hs, err := c.LockMany(ctx, keys, client.AcquireArgs{Owner: 2}); err == nil {
			if err := hs.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "all are free", func() bool {
		_, err := c.AcquireMany(t.Context(), keys, client.AcquireArgs{Owner: 3})
		return err == nil
	})
}
