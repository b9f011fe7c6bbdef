package both_test

import (
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// Leases are released while they are renewed, as a daemon does by its two lanes.
func TestReleasesBesideRenewalsDoNotMoveTheSessionsDeadline(t *testing.T) {
	e, err := embedded.Open(embedded.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	s := pair(t, open(t, testserver.StartRedis(t), "lock:"), e)
	defer s.Close()
	h := &host{Store: s}
	wrong := 0
	for token := uint64(1); token <= 500; token++ {
		op := upstream.Op{Kind: cache.OpTry, Key: "k", Token: token, TTL: time.Minute}
		if r := h.do(t, op); r.Status != cache.Granted {
			t.Fatalf("%+v", r)
		}
		renewal, release := op, op
		renewal.Kind, release.Kind = cache.OpRenew, cache.OpRelease
		var both sync.WaitGroup
		both.Go(func() {
			if r := h.do(t, renewal); r.Session > clock()+int64(11*time.Second) {
				wrong++
			}
		})
		h.do(t, release)
		both.Wait()
	}
	if wrong > 0 {
		t.Errorf("%d of 500 renewals beside a release say that the session never ends", wrong)
	}
}
