package daemon_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// unanswered is a Redis whose questions to other hosts are not answered until let is closed.
type unanswered struct {
	*redis.Store
	asked, let chan struct{}
}

func (s *unanswered) Capabilities() upstream.Capabilities {
	c := s.Store.Capabilities()
	c.Registrar, c.Asker = s, s
	return c
}

func (s *unanswered) Holders(ctx context.Context, key string, mode cache.Mode,
	limit int) ([]upstream.Lock, error) {
	locks, err := s.Store.Holders(ctx, key, mode, limit)
	for i := range locks {
		locks[i].Asker = s
	}
	return locks, err
}

func (s *unanswered) Ask(ctx context.Context, _ []*upstream.Question) {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	select {
	case <-ctx.Done():
	case <-s.let:
	}
}

// A client waits for a key that another host holds. A view asks that host. The takeover does not
// wait for the answer.
func TestATakeoverDoesNotWaitForAnswersOfOtherHosts(t *testing.T) {
	server := testserver.StartRedis(t)
	cfg, err := redis.Parse(server.URL() + "?timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	inner, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &unanswered{Store: inner, asked: make(chan struct{}, 1), let: make(chan struct{})}
	h := start(t, s, func(c *daemon.Config) { c.Host = "web-1" })
	holdSilently(t, server, 1)
	c := h.dial(client.Options{})
	h.queue(c, "k0", 0, time.Minute)
	acquire(t, c, client.AcquireArgs{Key: "own", TTL: time.Minute})
	viewed := make(chan struct{})
	go func() {
		defer close(viewed)
		h.view(engine.ViewQuery{})
	}()
	<-s.asked
	if err := h.d.Park(func([]int) error { return errKeep }); !errors.Is(err, errKeep) {
		t.Error(err)
	}
	close(s.let)
	<-viewed
}
