package redlock_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redlock"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// The clocks of all nodes jump together, as with a wrong time server.
func TestConformanceOfClock(t *testing.T) {
	t.Parallel()
	var c cluster
	for range 3 {
		c = append(c, testserver.StartRedisFaketime(t))
	}
	storetest.Clock(t, func(t testing.TB, prefix string) upstream.Store {
		return open(t, c.url("max_ttl=24h&timeout=10s&prefix="+prefix), redlock.WithGrace(10*time.Second))
	}, storetest.Options{NoQueue: true}, func(d time.Duration) {
		for _, s := range c {
			s.JumpClock(d)
		}
	})
}
