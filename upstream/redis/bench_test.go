package redis_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// BenchmarkPairs has n acquires of uncontended keys, and the releases of the batch before, in one
// Apply. redis-µs/pair is the server's own CPU time.
//
//	go test -run - -bench Pairs ./upstream/redis
func BenchmarkPairs(b *testing.B) {
	for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
		for _, n := range []int{1, 32, 64, 128} {
			b.Run(fmt.Sprintf("%v/n=%d", mode, n), func(b *testing.B) { pairs(b, mode, n, false) })
		}
	}
	b.Run("exclusive/n=64/others queue elsewhere", func(b *testing.B) {
		pairs(b, cache.Exclusive, 64, true)
	})
}

func pairs(b *testing.B, mode cache.Mode, n int, queues bool) {
	srv := testserver.StartRedis(b)
	s := open(b, srv, "timeout=10s&waiter_lease=1m")
	if queues {
		other := open(b, srv, "timeout=10s&waiter_lease=1m")
		res := make([]cache.Result, 1)
		for _, x := range []upstream.Store{s, other} {
			_ = x.Apply(b.Context(), []cache.Op{{Kind: cache.OpJoin, Key: "elsewhere", Token: 1,
				TTL: time.Hour}}, res)
		}
		if res[0].Status != cache.Queued {
			b.Fatal(res[0])
		}
	}
	ops := make([]cache.Op, 2*n)
	res := make([]cache.Result, 2*n)
	keys := make([]string, 1<<14)
	for i := range keys {
		keys[i] = "bench:" + strconv.FormatUint(uint64(i)*0x9e3779b97f4a7c15, 16)
	}
	token := uint64(100)
	for i := range n {
		ops[n+i] = cache.Op{Kind: cache.OpWithdraw, Key: keys[i], Token: 1}
	}
	batch := func() {
		for i := range n {
			token++
			ops[i] = cache.Op{Kind: cache.OpTry, Mode: mode, Key: keys[int(token)%len(keys)], Token: token,
				TTL: 30 * time.Second, Floor: 12345}
		}
		if err := s.Apply(b.Context(), ops, res); err != nil {
			b.Fatal(err)
		}
		for i := range n {
			if res[i].Status != cache.Granted || res[n+i].Status != cache.Done {
				b.Fatal(res[i], res[n+i])
			}
			ops[n+i] = ops[i]
			ops[n+i].Kind = cache.OpRelease
		}
	}
	batch()
	measure(b, srv, n, "pair", batch)
}

// measure runs batch and reports the cost of each of its n steps.
func measure(b *testing.B, srv *testserver.Redis, n int, step string, batch func()) {
	cpu := func() float64 {
		u, _ := strconv.ParseFloat(srv.Info("used_cpu_user"), 64)
		v, _ := strconv.ParseFloat(srv.Info("used_cpu_sys"), 64)
		return u + v
	}
	b.ReportAllocs()
	before := cpu()
	for b.Loop() {
		batch()
	}
	done := float64(b.N * n)
	b.ReportMetric((cpu()-before)*1e6/done, "redis-µs/"+step)
	b.ReportMetric(done/b.Elapsed().Seconds(), step+"s/s")
}

// BenchmarkRenew renews n leases in one Apply.
func BenchmarkRenew(b *testing.B) {
	for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
		for _, n := range []int{32, 128} {
			b.Run(fmt.Sprintf("%v/n=%d", mode, n), func(b *testing.B) {
				srv := testserver.StartRedis(b)
				s := open(b, srv, "timeout=10s")
				ops, res := make([]cache.Op, n), make([]cache.Result, n)
				for i := range ops {
					ops[i] = cache.Op{Kind: cache.OpTry, Mode: mode, Key: "bench:" + strconv.Itoa(i),
						Token: uint64(i), TTL: time.Hour}
				}
				apply := func(want cache.Status) {
					_ = s.Apply(b.Context(), ops, res)
					for i := range res {
						if res[i].Status != want {
							b.Fatal(res[i])
						}
					}
				}
				apply(cache.Granted)
				for i := range ops {
					ops[i].Kind = cache.OpRenew
				}
				measure(b, srv, n, "renewal", func() { apply(cache.Done) })
			})
		}
	}
}
