package zookeeper_test

import (
	"fmt"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// BenchmarkPairs measures acquires and releases of free locks in batches, and the client library's
// own lock. go test -run '^$' -bench Pairs ./upstream/zookeeper
func BenchmarkPairs(b *testing.B) {
	srv := testserver.StartZooKeeper(b)
	for _, size := range []int{1, 64, 256} {
		b.Run(fmt.Sprint("batches of ", size), func(b *testing.B) {
			p := newPeer(b, srv.URL()+"?session=30s&timeout=10s")
			ops := make([]upstream.Op, size)
			res := make([]cache.Result, size)
			pairs := 0
			for b.Loop() {
				for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRelease} {
					for i := range ops {
						if kind == cache.OpTry {
							ops[i] = upstream.Op{Key: fmt.Sprint("k", i), Token: p.token(), TTL: long}
						}
						ops[i].Kind = kind
					}
					if err := p.Apply(b.Context(), ops, res); err != nil {
						b.Fatal(err)
					}
				}
				pairs += size
			}
			b.ReportMetric(float64(pairs)/b.Elapsed().Seconds(), "pairs/s")
		})
	}
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("zk.Lock, callers ", callers), func(b *testing.B) {
			c := srv.Client(b)
			b.SetParallelism(max(1, callers/2))
			n := make(chan int, 1000)
			for i := range 1000 {
				n <- i
			}
			b.RunParallel(func(pb *testing.PB) {
				l := zk.NewLock(c, fmt.Sprint("/z", <-n), zk.WorldACL(zk.PermAll))
				for pb.Next() {
					if err := l.Lock(); err != nil {
						b.Error(err)
					}
					if err := l.Unlock(); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
		})
	}
}

// BenchmarkPermits measures acquires and releases of permits of one semaphore of which other hosts
// hold permits. go test -run '^$' -bench Permits ./upstream/zookeeper
func BenchmarkPermits(b *testing.B) {
	srv := testserver.StartZooKeeper(b)
	for _, c := range []struct{ size, held int }{{1, 0}, {1, 1000}, {1, 9000}, {64, 0},
		{64, 1000}, {256, 0}} {
		b.Run(fmt.Sprintf("batches of %d beside %d", c.size, c.held), func(b *testing.B) {
			holder, p := newPeer(b, srv.URL()+"?session=40s&timeout=20s"),
				newPeer(b, srv.URL()+"?session=40s&timeout=20s")
			key := fmt.Sprint("k", c.size, "-", c.held)
			for left := c.held; left > 0; left -= 250 {
				sem{holder, key, 10_000}.take(min(left, 250))
			}
			s := sem{p, key, 10_000}
			ops := make([]upstream.Op, c.size)
			res := make([]cache.Result, c.size)
			pairs := 0
			for b.Loop() {
				for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRelease} {
					for i := range ops {
						if kind == cache.OpTry {
							ops[i] = s.op(kind, p.token())
						}
						ops[i].Kind = kind
					}
					if err := p.Apply(b.Context(), ops, res); err != nil {
						b.Fatal(err)
					}
				}
				pairs += c.size
			}
			b.ReportMetric(float64(pairs)/b.Elapsed().Seconds(), "pairs/s")
			if _, err := holder.Sweep(b.Context(), func(string, uint64) bool { return false }); err != nil {
				b.Fatal(err)
			}
		})
	}
}
