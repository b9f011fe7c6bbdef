package storetest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/cache"
)

// permitModel runs random ops on one semaphore, including repetitions of old ones. It checks each
// answer against the tokens that have permits and those that queue.
func permitModel(w *world, seed uint64) {
	hs := w.upTo(3)
	n := len(hs)
	rnd := rand.New(rand.NewPCG(seed, 2))
	held, queued, base := map[lease]bool{}, map[lease]bool{}, map[uint64]lease{}
	var old []struct {
		at lease
		op cache.Op
	}
	for range 400 {
		i := rnd.IntN(n)
		op := cache.Op{Mode: cache.Permit, Limit: 3, Key: "m" + string(rune('a'+seed)), TTL: long}
		op.Kind = []cache.OpKind{cache.OpTry, cache.OpTry, cache.OpJoin, cache.OpRenew, cache.OpRelease,
			cache.OpRelease,
			cache.OpWithdraw, cache.OpPeek}[rnd.IntN(8)]
		switch {
		case op.Kind == cache.OpPeek:
		case len(old) > 0 && rnd.IntN(3) > 0: // about an earlier token, usually the newest
			back := min(rnd.IntN(6), len(old)-1)
			if rnd.IntN(8) == 0 {
				back = rnd.IntN(len(old))
			}
			i, op.Token = old[len(old)-1-back].at.host, old[len(old)-1-back].at.token
		default:
			op.Token = hs[i].token()
		}
		me := lease{i, op.Token}
		if op.Token != 0 {
			old = append(old, struct {
				at lease
				op cache.Op
			}{me, op})
		}
		r := hs[i].apply(op)[0]
		others, before := len(held), len(queued)
		if held[me] {
			others--
		}
		if queued[me] {
			before--
		}
		bad := func() {
			w.Fatalf("seed %d: %v by %v is %v (%v); held %v, queued %v",
				seed, op.Kind, me, r.Status, r.Err, held, queued)
		}
		switch op.Kind {
		case cache.OpTry, cache.OpJoin:
			switch r.Status {
			case cache.Granted:
				if who, ok := base[r.Base]; others >= 3 || ok && who != me {
					bad()
				}
				base[r.Base], held[me] = me, true
				delete(queued, me)
			case cache.Busy, cache.Queued:
				if held[me] || others+before < 3 || (r.Status == cache.Queued) != (op.Kind == cache.OpJoin) {
					bad()
				}
				if delete(queued, me); op.Kind == cache.OpJoin {
					queued[me] = true
				}
			default:
				bad()
			}
		case cache.OpRelease, cache.OpWithdraw:
			if r.Status != cache.Done && (held[me] || r.Status != cache.NotHeld) {
				bad()
			}
			delete(held, me)
			delete(queued, me)
		case cache.OpRenew:
			if want := cache.NotHeld; held[me] && r.Status != cache.Done || !held[me] && r.Status != want {
				bad()
			}
		case cache.OpPeek:
			if r.Status != cache.Done && r.Status != cache.Busy || len(held) > 0 && r.Status == cache.Done ||
				len(held)+len(queued) == 0 && r.Status == cache.Busy {
				bad()
			}
		}
	}
}

// permitRace races hosts for one semaphore, each with several tokens in a batch.
func permitRace(w *world, kind cache.OpKind) {
	const turns, each = 30, 2
	s := sem{"k", 3}
	var inside atomic.Int32
	var wg sync.WaitGroup
	for _, h := range w.hosts(4) {
		wg.Go(func() {
			left, refused := turns, 0
			type stage int
			const (
				wanted stage = iota
				held
				leaving
			)
			tokens := map[uint64]stage{}
			for (left > 0 || len(tokens) > 0) && !w.Failed() {
				for left > 0 && len(tokens) < each {
					tokens[h.token()] = wanted
					left--
				}
				var ops []cache.Op
				for t, at := range tokens {
					op := cache.Op{Kind: kind, Mode: cache.Permit, Limit: s.limit, Key: s.key, Token: t, TTL: long}
					if at == held {
						inside.Add(-1)
						tokens[t] = leaving
					}
					if at != wanted {
						op.Kind = cache.OpRelease
					}
					ops = append(ops, op)
				}
				for j, r := range h.apply(ops...) {
					switch op := ops[j]; {
					// A server may limit the wait for rows, which a busy machine can reach.
					case r.Status == cache.Refused && refused < turns:
						refused++
					case op.Kind == cache.OpRelease:
						if r.Status != cache.Done {
							h.Errorf("release is %v (%v)", r.Status, r.Err)
						}
						delete(tokens, op.Token)
					case r.Status == cache.Granted:
						tokens[op.Token] = held
						if n := inside.Add(1); n > int32(s.limit) {
							w.Errorf("%d are inside", n)
						}
					case r.Status != cache.Busy && r.Status != cache.Queued:
						h.Errorf("acquire is %v (%v)", r.Status, r.Err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	w.nothingLeft()
}
