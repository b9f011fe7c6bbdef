package redis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestAServerThatRestartedDoesNotVoteUntilItIsOldEnough(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	cfg, err := redis.Parse(srv.URL() + "?timeout=5s")
	if err != nil {
		t.Fatal(err)
	}
	cfg.MinUptime = time.Hour
	if _, err := redis.Open(t.Context(), cfg); err == nil ||
		!strings.Contains(err.Error(), "does not vote for another 1h0m") {
		t.Fatalf("opening a store that asks for an hour: %v", err)
	}
	cfg.MinUptime = time.Second
	s, err := redis.OpenLazy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	p := &peer{T: t, Store: s}
	votes := func() {
		t.Helper()
		p.eventually("it votes", func() bool {
			r := p.do(cache.OpTry, cache.Exclusive, "a", p.token())
			if r.Status == cache.Refused && s.RunID() != "" &&
				!strings.Contains(r.Err.Error(), "does not vote") {
				t.Errorf("refused for another reason: %v", r.Err)
			}
			return r.Status == cache.Granted
		})
	}
	votes()
	first := s.RunID()
	srv.Restart()
	if r := p.do(cache.OpTry, cache.Exclusive, "b", p.token()); r.Status == cache.Granted {
		t.Error("it votes right after its restart")
	}
	votes()
	if srv.Info("uptime_in_seconds") < "2" {
		t.Errorf("it votes with an uptime of %s s", srv.Info("uptime_in_seconds"))
	}
	if first == "" || s.RunID() != srv.Info("run_id") || s.RunID() == first {
		t.Errorf("the run ids are %q and %q, the server says %q", first, s.RunID(), srv.Info("run_id"))
	}
}

func TestAServerThatHidesItsUptimeDoesNotVote(t *testing.T) {
	srv := testserver.StartRedis(t)
	srv.Do("ACL", "SETUSER", "shy", "on", ">pw", "~*", "&*", "+@all", "-info")
	cfg, err := redis.Parse("redis://shy:pw@" + srv.Addr() + "?timeout=5s")
	if err != nil {
		t.Fatal(err)
	}
	cfg.MinUptime = time.Second
	if _, err := redis.Open(t.Context(), cfg); err == nil ||
		!strings.Contains(err.Error(), "does not say since when") {
		t.Errorf("opening: %v", err)
	}
	cfg.MinUptime = 0
	s, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if s.RunID() != "" {
		t.Errorf("its run id is %q", s.RunID())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
