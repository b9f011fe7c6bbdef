package mysql_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// TestBatchesThatOverlapNeverFail makes hosts acquire and release a few locks, in large batches and
// in any order, while their leases are renewed. No lock has two holders, and no result is Unknown
// or Refused.
func TestBatchesThatOverlapNeverFail(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	const keys, rounds = 60, 25
	var g [keys]guarded
	var granted atomic.Int64
	var wg sync.WaitGroup
	for host := range 3 {
		p := newPeer(t, srv.URL()+"?timeout=30s")
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(9, uint64(host)))
			for range rounds {
				var ops []upstream.Op
				for _, k := range rnd.Perm(keys)[:rnd.IntN(keys)+1] {
					ops = append(ops, upstream.Op{Kind: cache.OpTry + cache.OpKind(rnd.IntN(2)),
						Mode: cache.Mode(rnd.IntN(3) / 2),
						Key:  fmt.Sprint("k", k), Token: p.token(), TTL: long})
				}
				if !stressTurn(p, ops, &g, &granted) {
					return
				}
			}
		})
	}
	wg.Wait()
	if granted.Load() == 0 {
		t.Error("nothing was ever granted")
	}
}

func stressTurn(p *peer, ops []upstream.Op, g *[60]guarded, granted *atomic.Int64) bool {
	at := func(op *upstream.Op) (n int) { _, _ = fmt.Sscanf(op.Key, "k%d", &n); return n }
	res, err := p.apply(ops...)
	if err != nil {
		p.Error(err)
		return false
	}
	var held []upstream.Op
	for i, r := range res {
		if r.Status == cache.Granted {
			granted.Add(1)
			g[at(&ops[i])].enter(p.T, ops[i].Mode, r.Base)
			ops[i].Kind = cache.OpRenew
			held = append(held, ops[i])
		}
	}
	if res, err = p.apply(held...); err != nil {
		p.Error(err)
	}
	for i, r := range res {
		if r.Status != cache.Done {
			p.Errorf("a renewal is %v", r.Status)
		}
		g[at(&held[i])].leave(held[i].Mode)
	}
	for i := range ops {
		ops[i].Kind = cache.OpWithdraw
	}
	if _, err = p.apply(ops...); err != nil {
		p.Error(err)
	}
	return err == nil
}
