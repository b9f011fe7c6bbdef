package daemon_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream/both"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// Locks are in Redis and in the embedded store. Redis hangs, and the locks are released. Another
// process can take over.
func TestATakeoverWhileTheRedisOfTwoStoresHangs(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	cfg, err := redis.Parse(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	old, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := both.New(old, embeddedStore(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	h := start(t, s, nil)
	c := h.dial(client.Options{})
	const n = 20
	var fences []uint64
	for i := range n {
		fences = append(fences, acquire(t, c, client.AcquireArgs{Key: fmt.Sprint("k", i),
			TTL: 30 * time.Second}).Fence)
	}
	srv.Pause()
	defer srv.Resume()
	for i, f := range fences {
		_, _ = c.Release(t.Context(), client.ReleaseArgs{Key: fmt.Sprint("k", i), Fence: f, Async: true})
	}
	eventually(t, "the pair is known to be down", func() bool {
		return h.d.Engine().Stores()[0].Down() != nil
	})
	for range 5 {
		if err := h.d.Park(func([]int) error { return errKeep }); !errors.Is(err, errKeep) {
			t.Error(err)
		}
	}
}
