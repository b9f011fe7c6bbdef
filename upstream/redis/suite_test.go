package redis_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a store on srv and closes it with the test.
func open(t testing.TB, srv *testserver.Redis, query string, set ...func(*redis.Config)) *redis.Store {
	t.Helper()
	return openStore(t, srv.URL()+"?"+query, set...)
}

func openStore(t testing.TB, url string, set ...func(*redis.Config)) *redis.Store {
	t.Helper()
	cfg, err := redis.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Timeout == redis.DefaultTimeout { // a busy machine may stall for longer
		cfg.Timeout = 5 * time.Second
	}
	s := storetest.Opened(t, func() (*redis.Store, error) {
		return redis.Open(t.Context(), storetest.With(cfg, set))
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// continuing makes a store continue with the leases of another.
func continuing(instance string) func(*redis.Config) {
	return func(c *redis.Config) { c.Instance = instance }
}

// reach opens a store for the suite, which closes it.
func reach(t testing.TB, url, prefix string) *redis.Store {
	t.Helper()
	cfg, err := redis.Parse(url + "&waiter_lease=5s&timeout=10s&prefix=" + prefix)
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// conform runs the suite at a URL. servers returns the servers behind it.
func conform(t *testing.T, url string, servers func() []*testserver.Redis) {
	if !strings.Contains(url, "?") {
		url += "?"
	}
	storetest.Run(t, func(t testing.TB, prefix string) upstream.Store { return reach(t, url, prefix) },
		storetest.Options{Counters: strings.HasPrefix(url, "redis+cluster:"),
			Server: theServer(servers()), Residue: func(t testing.TB, prefix string) []string {
				var left []string
				for _, srv := range servers() {
					for _, k := range srv.Admin().Keys(t.Context(), "*").Val() {
						if strings.Contains(k, prefix) {
							left = append(left, k)
						} else if !strings.HasSuffix(k, ":fence") && srv.Admin().PTTL(t.Context(), k).Val() == -1 {
							left = append(left, k+" for ever")
						}
					}
				}
				slices.Sort(left)
				return left
			}})
}

// theServer returns the server for the tests of faults. It is nil if there are several, because
// their faults have separate tests.
func theServer(all []*testserver.Redis) *storetest.Server {
	if len(all) != 1 {
		return nil
	}
	return &storetest.Server{Pause: all[0].Pause, Resume: all[0].Resume, Restart: all[0].Restart}
}

func only(srv *testserver.Redis) func() []*testserver.Redis {
	return func() []*testserver.Redis { return []*testserver.Redis{srv} }
}

func TestConformance(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	conform(t, srv.URL(), only(srv))
}

func TestConformanceOverAUnixSocket(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	conform(t, "unix://"+srv.Socket(), only(srv))
}

func TestConformanceWithAReplica(t *testing.T) {
	t.Parallel()
	master, _ := pair(t)
	conform(t, master.URL()+"?wait_replicas=1&wait_timeout=9s", only(master))
}

func TestConformanceBehindSentinel(t *testing.T) {
	t.Parallel()
	// The suite stops the master for moments, which must not cause a failover, even if a busy machine
	// prolongs them.
	c := testserver.StartRedisSentinel(t, "sentinel down-after-milliseconds "+
		testserver.MasterName+" 60000")
	conform(t, c.URL(), func() []*testserver.Redis { return []*testserver.Redis{c.Master()} })
}

func TestConformanceOnACluster(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, 0)
	conform(t, c.URL(), c.Masters)
}

func TestConformanceOnAClusterWithReplicas(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, 1)
	conform(t, c.URL()+"?wait_replicas=1&wait_timeout=9s", c.Masters)
}
