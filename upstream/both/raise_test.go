package both_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/both"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// countingStore counts the batches of renewals, which are the rounds of raise.
type countingStore struct {
	upstream.Store
	rounds *atomic.Int64
}

func (*countingStore) Capabilities() (none upstream.Capabilities) { return none }

func (s *countingStore) Apply(ctx context.Context, ops []upstream.Op, rs []upstream.Result) error {
	if ops[0].Kind == cache.OpRenew {
		s.rounds.Add(1)
	}
	return s.Store.Apply(ctx, ops, rs)
}

// takePermits takes n permits of each of some semaphores in one batch. It returns the highest base.
func takePermits(t testing.TB, s upstream.Store, from uint64, keys, n int) (highest uint64) {
	t.Helper()
	ops := make([]upstream.Op, keys*n)
	for i := range ops {
		ops[i] = upstream.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: 10_000, TTL: time.Minute,
			Key: fmt.Sprint("s", i%keys), Token: from + uint64(i)}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	rs := make([]upstream.Result, len(ops))
	_ = s.Apply(ctx, ops, rs)
	given := map[string]bool{}
	for i, r := range rs {
		if r.Status != cache.Granted {
			t.Errorf("a permit of %s is %v (%v)", ops[i].Key, r.Status, r.Err)
		}
		if b := fmt.Sprint(ops[i].Key, r.Base); given[b] {
			t.Errorf("two permits of %s have the base %d", ops[i].Key, r.Base)
		} else {
			given[b] = true
		}
		highest = max(highest, r.Base)
	}
	return highest
}

// One store has a counter for all keys, and the other has one for each slot.
func TestPermitsOfManySemaphoresGetBasesOfBothStores(t *testing.T) {
	t.Parallel()
	a, b := testserver.StartRedis(t), testserver.StartRedis(t)
	c := testserver.StartRedisCluster(t, 2, 0)
	pairs := map[string][2]func() upstream.Store{
		"redis and redis": {func() upstream.Store { return open(t, a, "1:") },
			func() upstream.Store { return open(t, b, "1:") }},
		"redis and cluster": {func() upstream.Store { return open(t, a, "2:") },
			func() upstream.Store { return openURL(t, c.URL()+"?timeout=10s") }},
		"cluster and redis": {func() upstream.Store { return openURL(t, c.URL()+"?timeout=10s") },
			func() upstream.Store { return open(t, b, "3:") }},
	}
	// The clock of this host. One that is ahead comes last: it puts the servers' counters ahead.
	for n, skew := range []time.Duration{0, -time.Hour, time.Hour} {
		for name, stores := range pairs {
			t.Run(fmt.Sprintf("%s, %v", name, skew), func(t *testing.T) {
				var rounds atomic.Int64
				s := pair(t, &countingStore{stores[0](), &rounds}, &countingStore{stores[1](), &rounds})
				defer s.Close()
				s.(*both.Store).SetWall(func() int64 { return time.Now().Add(skew).UnixMicro() })
				slowest := time.Duration(0)
				for i := range 4 {
					began := time.Now()
					base := takePermits(t, s, uint64(10_000*len(name)+400*n+100*i+1), 12, 3)
					took := time.Since(began)
					slowest = max(slowest, took)
					ahead := time.UnixMicro(int64(base)).Sub(time.Now())
					t.Logf("%d rounds so far, %v; the bases are ahead by %v", rounds.Load(), took, ahead)
					if skew <= 0 && ahead > 8*slowest+300*time.Millisecond {
						t.Errorf("the bases are %v ahead of the clock", ahead)
					}
				}
			})
		}
	}
}

// Other hosts move the old store's counter all the time.
func TestContendedPermitsStayNearTheClock(t *testing.T) {
	a, b := testserver.StartRedis(t), testserver.StartRedis(t)
	old := &host{Store: open(t, a, "lock:")}
	defer old.Close()
	var tokens atomic.Uint64
	tokens.Store(1_000_000)
	others := func() { takePermits(t, old, tokens.Add(10), 1, 3) }
	const hosts = 3
	var wg sync.WaitGroup
	var highest, slowest atomic.Int64
	for h := range hosts {
		s := pair(t, &busyStore{open(t, a, "lock:"), others}, open(t, b, "lock:"))
		defer s.Close()
		wg.Go(func() {
			for i := range 40 {
				began := time.Now()
				base := takePermits(t, s, uint64(10_000*(h+1)+100*i), 3, 2)
				slowest.Store(max(slowest.Load(), int64(time.Since(began))))
				highest.Store(max(highest.Load(), int64(base)))
			}
		})
	}
	wg.Wait()
	ahead := time.UnixMicro(highest.Load()).Sub(time.Now())
	t.Logf("ahead by %v, the slowest batch took %v", ahead, time.Duration(slowest.Load()))
	if ahead > time.Duration(8*slowest.Load())+300*time.Millisecond {
		t.Errorf("the bases are %v ahead of the clock", ahead)
	}
}
