package redlock_test

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// BenchmarkPairs measures uncontended acquires and releases in batches: go test -bench Pairs -run
// xxx ./upstream/redlock
func BenchmarkPairs(b *testing.B) {
	for _, nodes := range []int{1, 3, 5} {
		for _, keys := range []int{1, 64} {
			b.Run(fmt.Sprintf("%d nodes, %d keys", nodes, keys), func(b *testing.B) {
				c := start(b, nodes)
				var s upstream.Store
				if nodes == 1 {
					s = single(b, c[0])
				} else {
					s = newPeer(b, c.url(patient))
				}
				ops, res := make([]upstream.Op, keys), make([]upstream.Result, keys)
				token := uint64(0)
				for b.Loop() {
					token++
					for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRelease} {
						for i := range ops {
							ops[i] = upstream.Op{Kind: kind, Key: fmt.Sprint("k", i), Token: token, TTL: long}
						}
						if err := s.Apply(b.Context(), ops, res); err != nil {
							b.Fatal(err)
						}
						if st := res[0].Status; st != cache.Granted && st != cache.Done {
							b.Fatal(st)
						}
					}
				}
				b.ReportMetric(float64(keys)*float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			})
		}
	}
}
