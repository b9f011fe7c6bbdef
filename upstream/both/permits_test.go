package both_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// busyStore is a store at which other hosts do something before each batch of renewals.
type busyStore struct {
	upstream.Store
	others func()
}

func (*busyStore) Capabilities() (none upstream.Capabilities) { return none }

func (s *busyStore) Apply(ctx context.Context, ops []upstream.Op, rs []upstream.Result) error {
	if ops[0].Kind == cache.OpRenew {
		s.others()
	}
	return s.Store.Apply(ctx, ops, rs)
}

// Hosts on both stores acquire permits while other hosts use only the old store, and later only the
// new store. No two permits have the same fence.
func TestNoTwoPermitsHaveTheSameFence(t *testing.T) {
	a, b := testserver.StartRedis(t), testserver.StartRedis(t)
	old, new := &host{Store: open(t, a, "lock:")}, &host{Store: open(t, b, "lock:")}
	defer func() { _, _ = old.Close(), new.Close() }()
	fences := map[uint64]string{}
	permits := func(name string, h *host, n int, floor uint64) (last uint64) {
		ops, rs := make([]upstream.Op, n), make([]upstream.Result, n)
		for i := range ops {
			h.last++
			ops[i] = upstream.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: 1000, Key: "k", Token: h.last,
				TTL: time.Minute, Floor: floor}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_ = h.Apply(ctx, ops, rs)
		for _, r := range rs {
			if r.Status != cache.Granted {
				t.Fatalf("%s: the permit is %v (%v)", name, r.Status, r.Err)
			}
			if other := fences[r.Base]; other != "" {
				t.Fatalf("%s gets the fence base %d, and %s has it", name, r.Base, other)
			}
			fences[r.Base], last = name, max(last, r.Base)
		}
		return last
	}
	const ahead = 1 << 52 // of the clocks: the counters rise by one
	permits("a host on the old store", old, 1, ahead)
	var other *host // with one store alone
	busy := 0       // permits that it takes while the pair raises the counter there
	others := func(at *host) func() {
		return func() {
			if at == other && busy > 0 {
				permits("a host on one store", at, busy, 0)
			}
		}
	}
	h := &host{Store: pair(t, &busyStore{open(t, a, "lock:"), others(old)},
		&busyStore{open(t, b, "lock:"), others(new)})}
	defer h.Close()
	for _, other = range []*host{old, new} {
		last := uint64(0)
		for n := range 12 {
			busy = n % 4
			last = max(last, permits(fmt.Sprintf("a host on both, round %d", n), h, 1+n%5, 0))
			if n%3 == 0 {
				permits("a host on one store", other, 1, last+uint64(n%2))
			}
		}
		busy = 0
		permits("a host on both", h, 1, 0) // from here on the new store knows the fences of the old one
	}
}
