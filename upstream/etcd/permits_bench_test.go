package etcd_test

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// BenchmarkPermits acquires and releases permits of one semaphore, 64 at once or one after the
// other. Another host holds many permits of it.
//
//	go test -run - -bench Permits ./upstream/etcd
func BenchmarkPermits(b *testing.B) {
	srv := testserver.StartEtcd(b)
	p, q := newPeer(b, srv, "timeout=10s&ttl=60s"), newPeer(b, srv, "timeout=10s&ttl=60s")
	held := 0
	for _, holders := range []int{0, 100, 1000, 9000} {
		for held < holders {
			var ops []upstream.Op
			for ; held < holders && len(ops) < upstream.MaxBatch; held++ {
				ops = append(ops, permitOp(cache.OpTry, 10000, "k", q.token()))
			}
			if _, err := q.apply(ops...); err != nil {
				b.Fatal(err)
			}
		}
		for _, each := range []int{1, 64} {
			b.Run(fmt.Sprintf("holders=%d/each=%d", holders, each), func(b *testing.B) {
				benchPermits(b, p, each)
			})
		}
		b.Run(fmt.Sprintf("holders=%d/busy", holders), func(b *testing.B) {
			for b.Loop() {
				if r := p.permit(cache.OpTry, max(1, holders), "k", p.token()); holders > 0 &&
					r.Status != cache.Busy {
					b.Fatal(r)
				}
			}
		})
	}
}

func benchPermits(b *testing.B, p *peer, each int) {
	ops := make([]upstream.Op, each)
	for b.Loop() {
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRelease} {
			for i := range ops {
				tok := ops[i].Token
				if kind == cache.OpTry {
					tok = p.token()
				}
				ops[i] = permitOp(kind, 10000, "k", tok)
			}
			if _, err := p.apply(ops...); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.N*each)/b.Elapsed().Seconds(), "pairs/s")
}
