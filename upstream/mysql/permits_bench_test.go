package mysql_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// BenchmarkPermits takes and releases permits, n in a batch, of one semaphore or of n semaphores. A
// number of permits is held already. full is a try of a semaphore without a free permit.
//
//	go test -run - -bench Permits ./upstream/mysql
func BenchmarkPermits(b *testing.B) {
	srv := testserver.StartMariaDB(b, "--innodb-flush-log-at-trx-commit=2")
	s := open(b, srv.URL()+"?timeout=30s")
	var token atomic.Uint64
	for _, held := range []int{0, 100, 1000, 10000} {
		key := fmt.Sprint("held", held)
		fillPermits(b, s, key, held, &token)
		for _, n := range []int{1, 32} {
			b.Run(fmt.Sprintf("held=%d/same/n=%d", held, n), func(b *testing.B) {
				permitPairs(b, srv, s, &token, n, uint32(held+n), func(int) string { return key })
			})
		}
		if held > 0 {
			b.Run(fmt.Sprintf("held=%d/full", held), func(b *testing.B) {
				fullTries(b, s, &token, key, uint32(held))
			})
		}
	}
	for _, n := range []int{1, 32, 128} {
		b.Run(fmt.Sprintf("each/n=%d", n), func(b *testing.B) {
			permitPairs(b, srv, s, &token, n, 3, func(i int) string { return fmt.Sprint("each", i) })
		})
	}
}

// fillPermits acquires n permits.
func fillPermits(t testing.TB, s *mysql.Store, key string, n int,
	token *atomic.Uint64) (tokens []uint64) {
	t.Helper()
	for len(tokens) < n {
		ops := make([]upstream.Op, min(upstream.MaxBatch, n-len(tokens)))
		for i := range ops {
			ops[i] = upstream.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: uint32(n), Key: key,
				Token: token.Add(1), TTL: time.Hour}
			tokens = append(tokens, ops[i].Token)
		}
		res := make([]upstream.Result, len(ops))
		if err := s.Apply(t.Context(), ops, res); err != nil {
			t.Fatal(err)
		}
		for _, r := range res {
			if r.Status != cache.Granted {
				t.Fatalf("it is %v (%v)", r.Status, r.Err)
			}
		}
	}
	return tokens
}

func permitPairs(b *testing.B, srv *testserver.MariaDB, s *mysql.Store, token *atomic.Uint64, n int,
	limit uint32, key func(i int) string) {
	ops, res := make([]upstream.Op, n), make([]upstream.Result, n)
	pairs := 0
	theirs, ours := cpuTime(b, srv.PID()), cpuTime(b, os.Getpid())
	for b.Loop() {
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRelease} {
			for i := range ops {
				if kind == cache.OpTry {
					ops[i].Token = token.Add(1)
				}
				ops[i] = upstream.Op{Kind: kind, Mode: cache.Permit, Limit: limit, Key: key(i),
					Token: ops[i].Token, TTL: time.Minute}
			}
			if err := s.Apply(b.Context(), ops, res); err != nil {
				b.Fatal(err)
			}
			for _, r := range res {
				if r.Status != cache.Granted && kind == cache.OpTry || r.Status != cache.Done &&
					kind == cache.OpRelease {
					b.Fatalf("%v is %v", kind, r.Status)
				}
			}
		}
		pairs += n
	}
	b.ReportMetric((cpuTime(b, srv.PID())-theirs)*1e6/float64(pairs), "server-µs/pair")
	b.ReportMetric((cpuTime(b, os.Getpid())-ours)*1e6/float64(pairs), "client-µs/pair")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(pairs), "µs/pair")
}

func fullTries(b *testing.B, s *mysql.Store, token *atomic.Uint64, key string, limit uint32) {
	res := make([]upstream.Result, 1)
	for b.Loop() {
		if err := s.Apply(b.Context(), []upstream.Op{{Kind: cache.OpTry, Mode: cache.Permit, Limit: limit,
			Key: key, Token: token.Add(1), TTL: time.Minute}}, res); err != nil {
			b.Fatal(err)
		}
		if res[0].Status != cache.Busy {
			b.Fatalf("it is %v", res[0].Status)
		}
	}
}
