package redlock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/redlock"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster has some servers that know nothing of each other.
type cluster []*testserver.Redis

func start(t testing.TB, n int, args ...string) cluster {
	t.Helper()
	var c cluster
	for range n {
		c = append(c, testserver.StartRedis(t, args...))
	}
	return c
}

// all returns a Server whose faults affect all servers at once.
func (c cluster) all() *storetest.Server {
	each := func(do func(*testserver.Redis)) func() {
		return func() {
			for _, s := range c {
				do(s)
			}
		}
	}
	return &storetest.Server{Pause: each((*testserver.Redis).Pause),
		Resume:  each((*testserver.Redis).Resume),
		Restart: each((*testserver.Redis).Restart)}
}

func (c cluster) url(query string) string {
	var hosts []string
	for _, s := range c {
		hosts = append(hosts, s.Addr())
	}
	return "redlock://" + strings.Join(hosts, ",") + "?" + query
}

// member makes a node's store as the daemon does, except that servers that have just started may
// vote.
func member(m redlock.Member) (upstream.Store, error) {
	cfg, err := redis.Parse(m.URL)
	if err != nil {
		return nil, err
	}
	cfg.Instance = m.Instance
	return redis.OpenLazy(cfg)
}

// agedMember makes a node's store exactly as the daemon does.
func agedMember(m redlock.Member) (upstream.Store, error) {
	cfg, err := redis.Parse(m.URL)
	if err != nil {
		return nil, err
	}
	cfg.Instance, cfg.MinUptime = m.Instance, m.MinUptime
	return redis.OpenLazy(cfg)
}

func open(t testing.TB, url string, set ...func(*redlock.Config)) *redlock.Store {
	t.Helper()
	cfg, err := redlock.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Timeout == redlock.DefaultTimeout { // a busy machine may stall for longer
		cfg.Timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return storetest.Opened(t, func() (*redlock.Store, error) {
		return redlock.Open(ctx, storetest.With(cfg, set), member)
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	c := start(t, 5)
	storetest.Run(t, func(t testing.TB, prefix string) upstream.Store {
		// The nodes are healthy. The store waits for every answer, so that a key is free at all nodes as
		// soon as its release is done.
		return open(t, c.url("max_ttl=24h&timeout=10s&prefix="+prefix), redlock.WithGrace(10*time.Second))
	}, storetest.Options{NoQueue: true, Server: c.all(), Residue: c.residue})
}

// residue returns the keys of locks with prefix on any node.
func (c cluster) residue(t testing.TB, prefix string) []string {
	var left []string
	for _, s := range c {
		for _, k := range s.Admin().Keys(t.Context(), "*").Val() {
			if strings.Contains(k, prefix) {
				left = append(left, s.Addr()+" "+k)
			} else if s.Admin().PTTL(t.Context(), k).Val() == -1 && !strings.HasSuffix(k, ":fence") {
				left = append(left, s.Addr()+" "+k+" for ever")
			}
		}
	}
	slices.Sort(left)
	return left
}

// single opens a store on one of the servers alone, for comparison.
func single(t testing.TB, s *testserver.Redis) upstream.Store {
	t.Helper()
	cfg, err := redis.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	st, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}
