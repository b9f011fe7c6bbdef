package redis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// BenchmarkPermits has 64 acquires of permits, and the releases of the batch before, in one Apply.
// The permits belong to 64 semaphores, or to one semaphore in which other hosts hold permits and
// queue.
//
//	go test -run - -bench Permits ./upstream/redis
func BenchmarkPermits(b *testing.B) {
	b.Run("of 64 semaphores", func(b *testing.B) { permitPairs(b, 64, 64, 0, 0) })
	b.Run("of 64 semaphores, others queue elsewhere", func(b *testing.B) {
		permitPairs(b, 64, 64, 0, -1)
	})
	for _, held := range []int{0, 100, 1000, 9000} {
		b.Run(fmt.Sprintf("of one, %d held", held), func(b *testing.B) { permitPairs(b, 64, 1, held, 0) })
	}
	b.Run("one of one, 1000 held", func(b *testing.B) { permitPairs(b, 1, 1, 1000, 0) })
	for _, queued := range []int{1, 1000} {
		b.Run(fmt.Sprintf("joins, 1000 held, %d queue", queued), func(b *testing.B) {
			permitJoins(b, 64, 1000, queued)
		})
		b.Run(fmt.Sprintf("renewals, 1000 held, %d queue", queued), func(b *testing.B) {
			permitRenewals(b, 128, 1000, queued)
		})
	}
	b.Run("renewals, 1000 held", func(b *testing.B) { permitRenewals(b, 128, 1000, 0) })
}

// semaphoreOf makes a semaphore with the given numbers of held permits and waiters. If there are
// waiters, all permits are held.
func semaphoreOf(b *testing.B, srv *testserver.Redis, s upstream.Store, held, queued int) {
	apply := func(s upstream.Store, kind cache.OpKind, n int, from uint64, limit int, want cache.Status) {
		for at := 0; at < n; at += upstream.MaxBatch {
			var ops []upstream.Op
			for i := at; i < min(n, at+upstream.MaxBatch); i++ {
				ops = append(ops, upstream.Op{Kind: kind, Mode: cache.Permit, Limit: uint32(limit), Key: "one",
					Token: from + uint64(i), TTL: time.Hour})
			}
			res := make([]cache.Result, len(ops))
			if err := s.Apply(b.Context(), ops, res); err != nil || res[len(ops)-1].Status != want {
				b.Fatal(err, res[len(ops)-1])
			}
		}
	}
	apply(s, cache.OpTry, held, 1<<30, 10_000, cache.Granted)
	apply(open(b, srv, "timeout=10s&waiter_lease=1m"), cache.OpJoin, queued, 1, held, cache.Queued)
}

func permitPairs(b *testing.B, n, semaphores, held, queued int) {
	srv := testserver.StartRedis(b)
	s := open(b, srv, "timeout=10s&waiter_lease=1m")
	if queued < 0 {
		semaphoreOf(b, srv, s, 1, 1)
	} else {
		semaphoreOf(b, srv, s, held, queued)
	}
	ops, res := make([]cache.Op, 2*n), make([]cache.Result, 2*n)
	token := uint64(100)
	for i := range n {
		ops[n+i] = cache.Op{Kind: cache.OpWithdraw, Mode: cache.Permit, Key: "none", Token: 1}
	}
	batch := func() {
		for i := range n {
			token++
			key := "one"
			if semaphores > 1 {
				key = fmt.Sprint("bench:", token%uint64(16*semaphores))
			}
			ops[i] = cache.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: 10_000, Key: key, Token: token,
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

// permitJoins measures joins and withdrawals.
func permitJoins(b *testing.B, n, held, queued int) {
	srv := testserver.StartRedis(b)
	s := open(b, srv, "timeout=10s&waiter_lease=1m")
	semaphoreOf(b, srv, s, held, queued)
	ops, res := make([]cache.Op, n), make([]cache.Result, n)
	token := uint64(100)
	measure(b, srv, n, "pair", func() {
		for i := range ops {
			token++
			ops[i] = cache.Op{Kind: cache.OpJoin, Mode: cache.Permit, Limit: uint32(held), Key: "one",
				Token: token, TTL: time.Hour}
		}
		for _, kind := range []cache.OpKind{cache.OpJoin, cache.OpWithdraw} {
			for i := range ops {
				ops[i].Kind = kind
			}
			if err := s.Apply(b.Context(), ops, res); err != nil || res[n-1].Status != cache.Queued &&
				res[n-1].Status != cache.Done {
				b.Fatal(err, res[n-1])
			}
		}
	})
}

func permitRenewals(b *testing.B, n, held, queued int) {
	srv := testserver.StartRedis(b)
	s := open(b, srv, "timeout=10s&waiter_lease=1m")
	semaphoreOf(b, srv, s, held, queued)
	ops, res := make([]cache.Op, n), make([]cache.Result, n)
	for i := range ops {
		ops[i] = cache.Op{Kind: cache.OpRenew, Mode: cache.Permit, Key: "one", Token: 1<<30 + uint64(i),
			TTL: time.Hour}
	}
	measure(b, srv, n, "renewal", func() {
		if err := s.Apply(b.Context(), ops, res); err != nil || res[n-1].Status != cache.Done ||
			res[n-1].Contended != (queued > 0) {
			b.Fatal(err, res[n-1])
		}
	})
}
