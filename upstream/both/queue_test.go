package both_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// The old store loses the lease of a host that waits in the new one: it does not keep others from the lock.
func TestAWaiterThatHasLostTheOldLease(t *testing.T) {
	for new := range ordered {
		t.Run(new, func(t *testing.T) {
			a, news := testserver.StartRedis(t), ordered[new](t)
			x := &host{Store: pair(t, open(t, a, "lock:"), news())}
			y := &host{Store: pair(t, open(t, a, "lock:"), news())}
			z := &host{Store: news()}
			do := func(h *host, kind cache.OpKind, token uint64) upstream.Result {
				return h.do(t, upstream.Op{Kind: kind, Key: "k", Token: token, TTL: time.Minute})
			}
			is := func(r upstream.Result, want cache.Status) {
				t.Helper()
				if r.Status != want {
					t.Fatalf("it is %v (%v), want %v", r.Status, r.Err, want)
				}
			}
			is(do(z, cache.OpTry, 1), cache.Granted)
			is(do(x, cache.OpJoin, 2), cache.Queued)
			if err := a.Admin().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			is(do(y, cache.OpJoin, 3), cache.Queued)
			is(do(z, cache.OpRelease, 1), cache.Done)
			for end := time.Now().Add(20 * time.Second); ; {
				rx, ry := do(x, cache.OpJoin, 2), do(y, cache.OpJoin, 3)
				if rx.Status == cache.Granted || ry.Status == cache.Granted {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%v (%v) and %v (%v)", rx.Status, rx.Err, ry.Status, ry.Err)
				}
			}
			for _, h := range []*host{x, y, z} {
				_ = h.Close()
			}
		})
	}
}
