package redis_test

import (
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a store on srv and closes it with the test.
func open(t testing.TB, srv *testserver.Redis, query string, opts ...redis.Option) *redis.Store {
	t.Helper()
	cfg, err := redis.Parse(srv.URL() + "?" + query)
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), cfg, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	srv := testserver.StartRedis(t)
	storetest.Run(t, func(t testing.TB, prefix string) upstream.Store {
		cfg, err := redis.Parse(srv.URL() + "?waiter_lease=1s&timeout=10s&prefix=" + prefix)
		if err != nil {
			t.Fatal(err)
		}
		s, err := redis.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, storetest.Options{Leftovers: func(t testing.TB, prefix string) []string {
		var left []string
		for _, k := range srv.Admin().Keys(t.Context(), "*").Val() {
			if strings.Contains(k, prefix) {
				left = append(left, k)
			} else if srv.Admin().PTTL(t.Context(), k).Val() == -1 && !strings.HasSuffix(k, ":fence") {
				left = append(left, k+" for ever")
			}
		}
		slices.Sort(left)
		return left
	}})
}
