package storetest

import (
	"math/rand/v2"

	"github.com/locksidecar/locksidecar/cache"
)

// modelTests compare the store with a model of its leases.
var modelTests = []test{
	{"whatever comes late, twice or out of order, nobody is let in beside another", func(w *world) {
		for seed := range uint64(Rounds(1, 8)) {
			model(w, seed)
		}
	}},
}

// leases is the model of one key: its leases, by host and token.
type leases struct {
	held map[lease]cache.Mode
	// maybe has pending releases that a later token of their host may have ended.
	maybe map[lease]cache.Mode
	base  map[lease]uint64 // of the held leases
	// successors has the queued tokens on stores with a session. They get the key as soon as it is
	// free.
	successors map[lease]bool
	writer     uint64 // the highest base of an exclusive grant
	all        uint64 // the highest base
}

type lease struct {
	host  int
	token uint64
}

// model runs random ops of a few hosts on a few keys, and compares every answer. Some ops repeat
// old ones, whose tokens ended long ago.
func model(w *world, seed uint64) {
	hs := w.upTo(4)
	n := len(hs)
	rnd := rand.New(rand.NewPCG(seed, 1))
	keys := make([]leases, 3)
	for i := range keys {
		keys[i].held, keys[i].maybe = map[lease]cache.Mode{}, map[lease]cache.Mode{}
		keys[i].base = map[lease]uint64{}
		if !hs[0].ttls() || w.env.opts.KeepsPlaces {
			keys[i].successors = map[lease]bool{}
		}
	}
	type past struct {
		key int
		op  cache.Op
	}
	old := make([][]past, n)
	for range 600 {
		i := rnd.IntN(n)
		var ops []cache.Op
		var at []int
		for k := range keys {
			if rnd.IntN(3) == 0 {
				continue
			}
			op := someOp(rnd, hs[i], &keys[k], i)
			op.Key = key(k) + string(rune('a'+seed))
			if len(old[i]) > 0 && rnd.IntN(4) == 0 { // an old op arrives late, or again
				if p := old[i][rnd.IntN(len(old[i]))]; p.key == k {
					op = p.op
				}
			}
			ops, at = append(ops, op), append(at, k)
			old[i] = append(old[i], past{k, op})
		}
		for j, r := range hs[i].apply(ops...) {
			keys[at[j]].check(w, hs[i], i, &ops[j], r)
			if w.Failed() {
				w.Fatalf("seed %d", seed)
			}
		}
	}
}

// someOp returns a new op of host i, usually about a lease that it holds.
func someOp(rnd *rand.Rand, h *host, g *leases, i int) cache.Op {
	op := cache.Op{Mode: cache.Mode(rnd.IntN(2)), TTL: long, Floor: g.all}
	for at, mode := range g.held {
		if at.host == i && rnd.IntN(3) > 0 {
			op.Token, op.Mode = at.token, mode
		}
	}
	if op.Token == 0 {
		op.Token = h.token()
		op.Kind = []cache.OpKind{cache.OpTry, cache.OpTry, cache.OpJoin, cache.OpPeek, cache.OpRenew,
			cache.OpRelease}[rnd.IntN(6)]
	} else {
		op.Kind = []cache.OpKind{cache.OpRelease, cache.OpRelease, cache.OpRelease, cache.OpWithdraw,
			cache.OpRenew, cache.OpDowngrade,
			cache.OpPeek, cache.OpTry}[rnd.IntN(8)]
	}
	return op
}

// check compares one answer with the model and follows it.
func (g *leases) check(w *world, h *host, i int, op *cache.Op, r cache.Result) {
	me := lease{i, op.Token}
	mode, held := g.held[me]
	bad := func() {
		w.Errorf("%v %v by %v is %v (%v), held by %v, perhaps %v",
			op.Kind, op.Mode, me, r.Status, r.Err, g.held, g.maybe)
	}
	unsure, perhaps := g.maybe[me]
	if op.Kind != cache.OpPeek {
		delete(g.maybe, me)
	}
	if r.Status == cache.Queued && g.successors != nil {
		g.successors[me] = true
	} else if op.Kind <= cache.OpRelease {
		delete(g.successors, me)
	}
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		g.recordReplaced(me)
		switch {
		case r.Status == cache.Granted:
			g.granted(h, me, op, r, bad)
		case r.Status != cache.Busy && (r.Status != cache.Queued || op.Kind == cache.OpTry), held &&
			mode == op.Mode:
			bad()
		case perhaps:
			g.maybe[me] = unsure
		}
	case cache.OpRelease, cache.OpWithdraw:
		if r.Status != cache.Done && (r.Status != cache.NotHeld || held || op.Kind == cache.OpWithdraw) {
			bad()
		}
		delete(g.held, me)
	case cache.OpRenew, cache.OpDowngrade:
		if perhaps && r.Status == cache.Done {
			mode, held = unsure, true
			g.held[me] = mode
		}
		if r.Status != cache.Done && r.Status != cache.NotHeld || held != (r.Status == cache.Done) {
			bad()
		}
		if held && op.Kind == cache.OpDowngrade {
			g.held[me] = cache.Shared
		}
	case cache.OpPeek:
		if r.Status == cache.Done {
			clear(g.maybe)
		}
		if r.Status != cache.Done && r.Status != cache.Busy || len(g.held) > 0 &&
			r.Status == cache.Done ||
			len(g.held)+len(g.maybe)+len(g.successors) == 0 && r.Status == cache.Busy {
			bad()
		}
	}
}

// recordReplaced records that me's host continues with a later token, so that the store may end the
// leases of its earlier tokens.
func (g *leases) recordReplaced(me lease) {
	for other, mode := range g.held {
		if other.host == me.host && other.token < me.token {
			delete(g.held, other)
			g.maybe[other] = mode
		}
	}
}

func (g *leases) granted(h *host, me lease, op *cache.Op, r cache.Result, bad func()) {
	for other, mode := range g.held {
		if other != me && (mode == cache.Exclusive || op.Mode == cache.Exclusive) {
			bad()
		}
	}
	for other, mode := range g.maybe { // the lease has ended if it would have kept this one out
		if mode == cache.Exclusive || op.Mode == cache.Exclusive {
			delete(g.maybe, other)
		}
	}
	if !h.store.Info().Rebase && r.Base == g.base[me] { // a lease may keep its base there
		g.held[me] = op.Mode
		return
	}
	if r.Base <= g.writer || op.Mode == cache.Exclusive && r.Base <= g.all {
		bad()
	}
	g.base[me] = r.Base
	g.all = max(g.all, r.Base)
	if op.Mode == cache.Exclusive {
		g.writer = max(g.writer, r.Base)
	}
	g.held[me] = op.Mode
}
