package mysql_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// guarded is the resource that a lock protects. It counts the clients that believe that they hold
// the lock.
type guarded struct {
	writers, readers atomic.Int32
	fence            atomic.Uint64 // the highest base of a writer
}

func (g *guarded) enter(t *testing.T, mode cache.Mode, base uint64) {
	if mode == cache.Shared {
		g.readers.Add(1)
		if n := g.writers.Load(); n != 0 {
			t.Errorf("a reader is inside with %d writers", n)
		}
		if last := g.fence.Load(); last >= base {
			t.Errorf("a reader has base %d after a writer's %d", base, last)
		}
		return
	}
	if n, m := g.writers.Add(1), g.readers.Load(); n != 1 || m != 0 {
		t.Errorf("a writer is inside with %d writers and %d readers", n-1, m)
	}
	if last := g.fence.Swap(base); last >= base {
		t.Errorf("base %d after %d", base, last)
	}
}

func (g *guarded) leave(mode cache.Mode) {
	if mode == cache.Shared {
		g.readers.Add(-1)
	} else {
		g.writers.Add(-1)
	}
}

// TestCrashesUnderLoad kills the server repeatedly while three hosts, each with two batches in
// flight, acquire and release a few locks.
func TestCrashesUnderLoad(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t) // with innodb_flush_log_at_trx_commit=1
	const keys = 6
	var g [keys]guarded
	var granted atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for host := range 3 {
		p := newPeer(t, srv.URL())
		var tokens atomic.Uint64
		for lane := range 2 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(host), uint64(lane)))
				for !stop.Load() {
					// Each lane has its own keys, as in a daemon.
					loadTurn(p, rnd, &tokens, g[lane*keys/2:][:keys/2], lane, &granted)
				}
			})
		}
	}
	for range 3 {
		for was := granted.Load(); granted.Load() < was+200 && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
		srv.Kill()
		srv.Start()
	}
	for was := granted.Load(); granted.Load() < was+200 && !t.Failed(); {
		time.Sleep(time.Millisecond)
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d grants", granted.Load())
}

// loadTurn tries all keys in one batch, holds the granted ones, and makes sure before it returns
// that every lease has ended.
func loadTurn(p *peer, rnd *rand.Rand, tokens *atomic.Uint64, g []guarded, lane int,
	granted *atomic.Int64) {
	ops := make([]upstream.Op, len(g))
	for i := range ops {
		ops[i] = upstream.Op{Kind: cache.OpTry + cache.OpKind(rnd.IntN(2)),
			Mode: cache.Mode(rnd.IntN(3) / 2),
			Key:  fmt.Sprintf("key%d.%d", lane, i), Token: tokens.Add(1), TTL: 10 * time.Minute}
	}
	res, _ := p.apply(ops...)
	for i, r := range res {
		if r.Status == cache.Granted {
			granted.Add(1)
			g[i].enter(p.T, ops[i].Mode, r.Base)
		}
	}
	for i, r := range res {
		if r.Status == cache.Granted {
			g[i].leave(ops[i].Mode)
		}
		ops[i].Kind = cache.OpWithdraw
	}
	p.eventually("all are ended", func() bool {
		res, _ = p.apply(ops...)
		for _, r := range res {
			if r.Status != cache.Done {
				return false
			}
		}
		return true
	})
}
