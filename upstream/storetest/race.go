package storetest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/cache"
)

// raceTests race hosts for a few keys.
var raceTests = []test{
	{"hosts that try never hold together", func(w *world) { race(w, cache.OpTry) }},
	{"hosts that queue never hold together, and each gets its turns", func(w *world) {
		race(w, cache.OpJoin)
	}},
}

// guarded is a resource that a lock protects. It counts its users.
type guarded struct {
	writers, readers atomic.Int32
	fence            atomic.Uint64 // the highest base of a writer
}

// enter and leave are called by a host that believes that it holds the key.
func (g *guarded) enter(w *world, mode cache.Mode, base uint64) {
	if mode == cache.Exclusive {
		if n := g.writers.Add(1); n != 1 || g.readers.Load() != 0 {
			w.Errorf("a writer is inside with %d writers and %d readers", n-1, g.readers.Load())
		}
		if last := g.fence.Swap(base); last >= base {
			w.Errorf("base %d after %d", base, last)
		}
		return
	}
	g.readers.Add(1)
	if n := g.writers.Load(); n != 0 {
		w.Errorf("a reader is inside with %d writers", n)
	}
	if last := g.fence.Load(); last >= base {
		w.Errorf("a reader has base %d after a writer's %d", base, last)
	}
}

func (g *guarded) leave(mode cache.Mode) {
	if mode == cache.Exclusive {
		g.writers.Add(-1)
	} else {
		g.readers.Add(-1)
	}
}

func race(w *world, kind cache.OpKind) {
	const keys = 3
	turns := Rounds(20, 100)
	var g [keys]guarded
	var wg sync.WaitGroup
	for n, h := range w.hosts(4) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(n)))
			for range turns {
				if w.Failed() {
					return
				}
				turn(h, rnd, kind, &g)
			}
		})
	}
	wg.Wait()
	w.nothingLeft()
}

// turn tries all keys in one batch, repeatedly, until each has been held once. It releases each in
// the next batch.
func turn(h *host, rnd *rand.Rand, kind cache.OpKind, g *[3]guarded) {
	type lease struct {
		op   cache.Op
		held bool
		done bool
	}
	leases := make([]lease, len(g))
	for i := range leases {
		mode := cache.Exclusive
		if rnd.IntN(3) == 0 {
			mode = cache.Shared
		}
		leases[i].op = cache.Op{Kind: kind, Mode: mode, Key: key(i), Token: h.token(), TTL: long}
	}
	for left := len(leases); left > 0; {
		var ops []cache.Op
		var at []int
		for i := range leases {
			if x := &leases[i]; !x.done {
				op := x.op
				if x.held {
					g[i].leave(op.Mode)
					op.Kind = cache.OpRelease
				}
				ops, at = append(ops, op), append(at, i)
			}
		}
		for j, r := range h.apply(ops...) {
			x := &leases[at[j]]
			switch {
			case ops[j].Kind == cache.OpRelease:
				if r.Status != cache.Done {
					h.Errorf("release is %v (%v)", r.Status, r.Err)
				}
				x.done = true
				left--
			case r.Status == cache.Granted:
				x.held = true
				g[at[j]].enter(h.world, x.op.Mode, r.Base)
			case r.Status != cache.Busy && r.Status != cache.Queued:
				h.Errorf("acquire is %v (%v)", r.Status, r.Err)
				return
			}
		}
	}
}
