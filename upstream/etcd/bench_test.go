package etcd_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// BenchmarkPairs measures uncontended locks and unlocks on the same server. Our store has 64
// acquires, and the 64 releases of the batch before, in one Apply, with two in flight. etcd's own
// recipe has one session for 64 callers.
//
//	go test -run - -bench Pairs ./upstream/etcd
func BenchmarkPairs(b *testing.B) {
	for _, fsync := range []bool{false, true} {
		srv := testserver.StartEtcd(b, fmt.Sprintf("--unsafe-no-fsync=%v", !fsync))
		name := fmt.Sprintf("fsync=%v/", fsync)
		b.Run(name+"locksidecar", func(b *testing.B) { benchApply(b, srv, cache.Exclusive) })
		b.Run(name+"concurrency.Mutex", func(b *testing.B) { benchMutex(b, srv) })
		b.Run(name+"locksidecar shared", func(b *testing.B) { benchApply(b, srv, cache.Shared) })
		srv.Stop()
	}
}

func benchKey(n uint64) string {
	return "bench:" + strconv.FormatUint(n%(1<<20)*0x9e3779b97f4a7c15, 16)
}

func benchApply(b *testing.B, srv *testserver.Etcd, mode cache.Mode) {
	const n = 64
	s := open(b, srv, "timeout=10s")
	var token, left atomic.Uint64
	b.ReportAllocs()
	lane := func(iterate func() bool) {
		ops, res := make([]upstream.Op, 2*n), make([]upstream.Result, 2*n)
		for i := range n {
			ops[n+i] = upstream.Op{Kind: cache.OpWithdraw, Key: benchKey(token.Add(1)), Token: token.Load()}
		}
		for iterate() {
			for i := range n {
				t := token.Add(1)
				ops[i] = upstream.Op{Kind: cache.OpTry, Mode: mode, Key: benchKey(t), Token: t,
					TTL: time.Minute}
			}
			if err := s.Apply(b.Context(), ops, res); err != nil {
				b.Error(err)
				return
			}
			for i := range n {
				if res[i].Status != cache.Granted || res[n+i].Status != cache.Done {
					b.Errorf("%v %v", res[i], res[n+i])
					return
				}
				ops[n+i] = ops[i]
				ops[n+i].Kind = cache.OpRelease
			}
		}
		if err := s.Apply(context.Background(), ops[n:], res[n:]); err != nil {
			b.Error(err)
		}
	}
	// The second lane does as many batches as b.Loop lets the first one do.
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Go(func() { lane(func() bool { left.Add(1); return !stop.Load() }) })
	for left.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	b.ResetTimer()
	begun := left.Load()
	lane(b.Loop)
	second := left.Load() - begun
	stop.Store(true)
	wg.Wait()
	b.ReportMetric(float64(uint64(b.N)+second)*n/b.Elapsed().Seconds(), "pairs/s")
}

func benchMutex(b *testing.B, srv *testserver.Etcd) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	session, err := concurrency.NewSession(c)
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()
	var n, done atomic.Uint64
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(b.Context())
	pair := func() {
		m := concurrency.NewMutex(session, "/mutex/"+benchKey(n.Add(1)))
		if err := m.Lock(ctx); err != nil {
			return
		}
		if err := m.Unlock(context.WithoutCancel(ctx)); err != nil {
			b.Error(err)
		}
		done.Add(1)
	}
	for range 63 {
		wg.Go(func() {
			for ctx.Err() == nil {
				pair()
			}
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	begun := done.Load()
	for b.Loop() {
		pair()
	}
	b.ReportMetric(float64(done.Load()-begun)/b.Elapsed().Seconds(), "pairs/s")
	cancel()
	wg.Wait()
}
