package both_test

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// The new store hangs: it accepts connections and gives no answers. The same Apply releases the
// lease in the old store.
func TestAReleaseReachesTheOldStoreThoughTheNewOneHangs(t *testing.T) {
	t.Parallel()
	a, b := testserver.StartRedis(t), testserver.StartEtcd(t)
	oldConf, err := redis.Parse(a.URL() + "?timeout=1s")
	if err != nil {
		t.Fatal(err)
	}
	old, err := redis.Open(t.Context(), oldConf)
	if err != nil {
		t.Fatal(err)
	}
	newConf, err := etcd.Parse("etcd://" + b.Addr() + "?timeout=1s&ttl=60s")
	if err != nil {
		t.Fatal(err)
	}
	newConf.Clock = clock
	new, err := etcd.Open(t.Context(), newConf)
	if err != nil {
		t.Fatal(err)
	}
	s := pair(t, old, new)
	defer s.Close()
	do := func(op upstream.Op) upstream.Result { // as upstream.Pump does
		ctx, cancel := context.WithTimeout(t.Context(), s.Info().Timeout)
		defer cancel()
		r := make([]upstream.Result, 1)
		_ = s.Apply(ctx, []upstream.Op{op}, r)
		return r[0]
	}
	op := upstream.Op{Kind: cache.OpTry, Key: "k", Token: 1, TTL: 10 * time.Minute}
	if r := do(op); r.Status != cache.Granted {
		t.Fatalf("%+v", r)
	}
	b.Pause()
	defer b.Resume()
	op.Kind = cache.OpRelease
	r := do(op)
	if n := a.Admin().Exists(t.Context(), "lock:k").Val(); n != 0 {
		t.Errorf("the old store still has the lease, because the new one has used up all the time: %v, %v", r.Status, r.Err)
	}
}
