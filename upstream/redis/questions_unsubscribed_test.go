package redis_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A host without its channel asks nothing. It would wait for answers that it cannot receive, and
// mute the daemons that send them.
func TestAHostWithoutItsChannelAsksNothing(t *testing.T) {
	srv := testserver.StartRedis(t)
	holder, hears := newPeer(t, srv, ""), newPeer(t, srv, "")
	var asked atomic.Int64
	holder.Answer(func(key string, _ cache.Mode, tokens []uint64) []int64 {
		if key == "unsubscribed" {
			asked.Add(1)
		}
		return []int64{1e9}
	})
	holder.take("unsubscribed", cache.Exclusive)
	holder.take("hears", cache.Exclusive)
	srv.Do("ACL", "SETUSER", "unsubscribed", "on", ">pw", "~*", "resetchannels", "+@all")
	cfg, err := redis.Parse(strings.Replace(srv.URL(), "redis://", "redis://unsubscribed:pw@",
		1) + "?timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	unsubscribed, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unsubscribed.Close() })
	ask := func(s *redis.Store, key string) upstream.Lock {
		t.Helper()
		locks, err := s.Holders(t.Context(), key, cache.Exclusive, 1)
		if err != nil || len(locks) != 1 {
			t.Fatal(locks, err)
		}
		upstream.Ask(t.Context(), []upstream.Asked{{Key: key, Locks: locks}})
		return locks[0]
	}
	if l := ask(unsubscribed, "unsubscribed"); l.Held > 0 {
		t.Errorf("%+v", l)
	}
	hears.eventually("another host gets an answer", func() bool {
		return ask(hears.Store, "hears").Held > 0
	})
	if n := asked.Load(); n != 0 {
		t.Errorf("the holder was asked %d times", n)
	}
}
