package redis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A host that hears nothing does not wait for answers that it cannot hear, nor mute those that give them.
func TestAHostWithoutItsChannelDoesNotWaitForAnswers(t *testing.T) {
	srv := testserver.StartRedis(t)
	holder := newPeer(t, srv, "")
	holder.Answer(func(_ string, _ cache.Mode, tokens []uint64) []int64 { return make([]int64, len(tokens)) })
	holder.take("k", cache.Exclusive)
	srv.Do("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "resetchannels", "+@all")
	cfg, err := redis.Parse(strings.Replace(srv.URL(), "redis://", "redis://deaf:pw@", 1) + "?timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	begin := time.Now()
	locks, err := s.Holders(t.Context(), "k", cache.Exclusive, 1)
	upstream.Ask(t.Context(), []upstream.Asked{{Key: "k", Locks: locks}})
	if took := time.Since(begin); err != nil || len(locks) != 1 || took >= upstream.AnswerTime {
		t.Errorf("%v after %v (%v)", locks, took, err)
	}
}
