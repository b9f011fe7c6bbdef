package storetest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// sem is a semaphore of a test.
type sem struct {
	key   string
	limit uint32
}

func (h *host) permit(kind cache.OpKind, s sem, token uint64, ttl time.Duration) cache.Result {
	h.Helper()
	return h.apply(cache.Op{Kind: kind, Mode: cache.Permit, Limit: s.limit, Key: s.key, Token: token, TTL: ttl})[0]
}

func (h *host) tryPermit(s sem, token uint64) cache.Result {
	h.Helper()
	return h.permit(cache.OpTry, s, token, long)
}

func (h *host) joinPermit(s sem, token uint64) cache.Result {
	h.Helper()
	return h.permit(cache.OpJoin, s, token, long)
}

// endPermit releases, or withdraws.
func (h *host) endPermit(kind cache.OpKind, s sem, token uint64) cache.Result {
	h.Helper()
	return h.permit(kind, s, token, 0)
}

// takePermits takes n permits, each with a token and a base of its own.
func (h *host) takePermits(s sem, n int) (tokens []uint64) {
	h.Helper()
	bases := map[uint64]bool{}
	for range n {
		t := h.token()
		r := h.tryPermit(s, t)
		h.want(r, cache.Granted)
		if bases[r.Base] {
			h.Errorf("two permits have base %d", r.Base)
		}
		bases[r.Base] = true
		tokens = append(tokens, t)
	}
	return tokens
}

// hintedPermit waits for a hint of that kind about s, and token if the hint names one.
func (h *host) hintedPermit(kind cache.HintKind, s sem, token uint64) {
	h.Helper()
	for {
		x := h.hint()
		if x.Kind == kind && x.Mode == cache.Permit && x.Key == s.key && (x.Token == 0 || x.Token == token) {
			return
		}
	}
}

// permitTests are about one host; those of permitHostTests take several, and those of
// permitQueueTests a queue between them.
var permitTests = []test{
	{"a semaphore has as many permits as it says", func(w *world) {
		h := w.host()
		s := sem{"k", 3}
		ts := h.takePermits(s, 3)
		w.want(h.tryPermit(s, h.token()), cache.Busy)
		w.want(h.endPermit(cache.OpRelease, s, ts[1]), cache.Done)
		w.want(h.endPermit(cache.OpRelease, s, ts[1]), cache.NotHeld)
		h.takePermits(s, 1)
		w.want(h.tryPermit(s, h.token()), cache.Busy)
	}},
	{"a semaphore's limit is what each acquire says", func(w *world) {
		h := w.host()
		h.takePermits(sem{"k", 1}, 1)
		w.want(h.tryPermit(sem{"k", 1}, h.token()), cache.Busy)
		h.takePermits(sem{"k", 3}, 2)
		w.want(h.tryPermit(sem{"k", 2}, h.token()), cache.Busy)
	}},
	{"the same token has one permit, and is granted again", func(w *world) {
		h := w.host()
		s := sem{"k", 2}
		t := h.takePermits(s, 1)[0]
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			w.want(h.permit(kind, s, t, long), cache.Granted)
		}
		h.takePermits(s, 1)
		w.want(h.tryPermit(s, t), cache.Granted) // although it is full
		w.want(h.tryPermit(s, h.token()), cache.Busy)
	}},
	{"a semaphore and a lock of the same key have nothing to do with each other", func(w *world) {
		h := w.host()
		s := sem{"k", 1}
		t, _ := h.take("k", cache.Exclusive)
		p := h.takePermits(s, 1)[0]
		w.want(h.release("k", p), cache.NotHeld)
		w.want(h.endPermit(cache.OpRelease, s, t), cache.NotHeld)
		w.want(h.renew("k", t, long), cache.Done)
		w.want(h.release("k", t), cache.Done)
		w.want(h.peek("k"), cache.Done)
		w.want(h.permit(cache.OpPeek, s, 0, 0), cache.Busy)
		w.want(h.endPermit(cache.OpRelease, s, p), cache.Done)
		w.want(h.permit(cache.OpPeek, s, 0, 0), cache.Done)
	}},
	{"permits are renewed one by one", func(w *world) {
		h := w.host()
		s := sem{"k", 2}
		ts := h.takePermits(s, 2)
		w.want(h.permit(cache.OpRenew, s, ts[0], long), cache.Done)
		w.want(h.endPermit(cache.OpRelease, s, ts[0]), cache.Done)
		w.want(h.permit(cache.OpRenew, s, ts[0], long), cache.NotHeld)
		w.want(h.permit(cache.OpRenew, s, ts[1], long), cache.Done)
		w.want(h.permit(cache.OpRenew, s, h.token(), long), cache.NotHeld)
	}},
	{"a permit's base can be lifted", func(w *world) {
		h := w.host()
		w.skipUnless(h.store.Info().Rebase, "bases are the store's own order")
		s := sem{"k", 2}
		t := h.token()
		first := h.tryPermit(s, t)
		w.want(first, cache.Granted)
		op := cache.Op{Kind: cache.OpRenew, Mode: cache.Permit, Rebase: true, Key: s.key, Token: t, TTL: long, Floor: first.Base + 1000}
		r := h.apply(op)[0]
		w.want(r, cache.Done)
		if r.Base <= first.Base+1000 {
			w.Errorf("base %d after %d and floor %d", r.Base, first.Base, op.Floor)
		}
	}},
	{"one batch has several ops of a semaphore", func(w *world) {
		h := w.host()
		s := sem{"k", 3}
		var ops []cache.Op
		for range 5 {
			ops = append(ops, cache.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: s.limit, Key: s.key, Token: h.token(), TTL: long})
		}
		var got []uint64
		bases := map[uint64]bool{}
		for i, r := range h.apply(ops...) {
			if r.Status == cache.Granted {
				got, bases[r.Base] = append(got, ops[i].Token), true
			} else {
				w.want(r, cache.Busy)
			}
		}
		if len(got) != 3 || len(bases) != 3 {
			w.Fatalf("%d granted, with %d bases", len(got), len(bases))
		}
		// One ends, another is renewed and one more wants in, at once.
		rs := h.apply(cache.Op{Kind: cache.OpRelease, Mode: cache.Permit, Key: s.key, Token: got[0]},
			cache.Op{Kind: cache.OpRenew, Mode: cache.Permit, Key: s.key, Token: got[1], TTL: long},
			cache.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: s.limit, Key: s.key, Token: h.token(), TTL: long})
		w.want(rs[0], cache.Done)
		w.want(rs[1], cache.Done)
		if st := rs[2].Status; st != cache.Granted && st != cache.Busy { // the order within a batch is nobody's promise
			w.Errorf("it is %v", st)
		}
	}},
	{"a late request does not shorten a permit", func(w *world) {
		h := w.host()
		w.skipUnless(h.ttls(), "leases live by the session")
		s := sem{"k", 1}
		t := h.takePermits(s, 1)[0]
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpRenew} {
			h.permit(kind, s, t, short)
		}
		w.past(h, short)
		w.want(h.tryPermit(s, h.token()), cache.Busy)
	}},
	{"a permit that is not renewed comes back, and the others stay", func(w *world) {
		h := w.host()
		w.skipUnless(h.ttls(), "leases live by the session")
		s := sem{"k", 2}
		kept, lost, next := h.takePermits(s, 1)[0], h.token(), h.token()
		w.want(h.permit(cache.OpTry, s, lost, short), cache.Granted)
		w.eventually("the permit is back", func() bool { return h.tryPermit(s, next).Status == cache.Granted })
		w.want(h.permit(cache.OpRenew, s, lost, long), cache.NotHeld)
		w.want(h.permit(cache.OpRenew, s, kept, long), cache.Done)
		w.want(h.tryPermit(s, h.token()), cache.Busy)
	}},
	{"permits are listed", func(w *world) {
		h := w.host()
		l, ok := h.store.(upstream.Lister)
		w.skipUnless(ok, "the store has no list")
		h.takePermits(sem{"k", 5}, 2)
		found := 0
		for cursor := ""; ; {
			locks, next, err := l.List(w.Context(), "k", cursor, 10)
			if err != nil {
				w.Fatal(err)
			}
			for _, x := range locks {
				if x.Key == "k" && x.Mode == cache.Permit && x.Mine && !x.Foreign {
					found++
				}
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		if found < 2 { // a pair of stores lists each twice
			w.Errorf("%d permits are listed", found)
		}
	}},
	{"whatever comes late, twice or out of order, no permit is given out twice", func(w *world) {
		for seed := range uint64(4) {
			permitModel(w, seed)
		}
	}},
}

var permitHostTests = []test{
	{"hosts share a semaphore", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 2}
		t := hs[0].takePermits(s, 1)[0]
		hs[1].last.Store(t - 1) // the same number of another daemon is another token
		u := hs[1].takePermits(s, 1)[0]
		w.want(hs[2].tryPermit(s, hs[2].token()), cache.Busy)
		w.want(hs[2].endPermit(cache.OpRelease, s, t), cache.NotHeld)
		w.want(hs[0].endPermit(cache.OpRelease, s, t), cache.Done)
		w.want(hs[1].permit(cache.OpRenew, s, u, long), cache.Done)
		hs[2].takePermits(s, 1)
	}},
	{"a later token of a host does not end its earlier permits", func(w *world) {
		hs := w.hosts(2)
		s := sem{"k", 4}
		ts := hs[0].takePermits(s, 3)
		hs[1].takePermits(s, 1)
		w.want(hs[0].tryPermit(s, hs[0].token()), cache.Busy)
		for _, t := range ts {
			w.want(hs[0].permit(cache.OpRenew, s, t, long), cache.Done)
			w.want(hs[0].endPermit(cache.OpRelease, s, t), cache.Done)
		}
	}},
	{"hosts never have more permits than there are", func(w *world) { permitRace(w, cache.OpTry) }},
}

var permitQueueTests = []test{
	{"tokens that queue for permits get them in the order in which they came", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 2}
		held := hs[0].takePermits(s, 2)
		type waits struct {
			h     *host
			token uint64
		}
		var q []waits // two of one host among them
		for _, h := range []*host{hs[1], hs[2], hs[1], hs[0]} {
			x := waits{h, h.token()}
			w.want(h.joinPermit(s, x.token), cache.Queued)
			q = append(q, x)
		}
		for i, t := range held {
			w.want(hs[0].endPermit(cache.OpRelease, s, t), cache.Done)
			for j := len(q) - 1; j > i; j-- {
				w.want(q[j].h.joinPermit(s, q[j].token), cache.Queued)
			}
			w.want(q[i].h.joinPermit(s, q[i].token), cache.Granted)
		}
		// Both at once: both of those that are next may have one, whoever asks first.
		w.want(q[0].h.endPermit(cache.OpRelease, s, q[0].token), cache.Done)
		w.want(q[1].h.endPermit(cache.OpRelease, s, q[1].token), cache.Done)
		w.want(q[3].h.joinPermit(s, q[3].token), cache.Granted)
		w.want(q[2].h.joinPermit(s, q[2].token), cache.Granted)
	}},
	{"a try does not pass those who queue for a permit", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 2}
		held := hs[0].takePermits(s, 2)
		q := hs[1].token()
		w.want(hs[1].joinPermit(s, q), cache.Queued)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[0]), cache.Done)
		w.want(hs[2].tryPermit(s, hs[2].token()), cache.Busy)
		w.want(hs[1].joinPermit(s, q), cache.Granted)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[1]), cache.Done)
		hs[2].takePermits(s, 1)
	}},
	{"a host that is gone is skipped by those behind it for a permit", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 1}
		t := hs[0].takePermits(s, 1)[0]
		w.want(hs[1].joinPermit(s, hs[1].token()), cache.Queued) // and never again
		q := hs[2].token()
		w.want(hs[2].joinPermit(s, q), cache.Queued)
		if !hs[1].ttls() {
			hs[1].end()
		}
		w.want(hs[0].endPermit(cache.OpRelease, s, t), cache.Done)
		w.eventually("the next but one has it", func() bool { return hs[2].joinPermit(s, q).Status == cache.Granted })
	}},
	{"a release wakes who is next for a permit", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 2}
		hs[1].listening(hs[0])
		hs[2].listening(hs[0])
		held := hs[0].takePermits(s, 2)
		q1, q2 := hs[1].token(), hs[2].token()
		w.want(hs[1].joinPermit(s, q1), cache.Queued)
		w.want(hs[2].joinPermit(s, q2), cache.Queued)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[0]), cache.Done)
		hs[1].hintedPermit(cache.HintFree, s, q1)
		w.want(hs[1].joinPermit(s, q1), cache.Granted)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[1]), cache.Done)
		hs[2].hintedPermit(cache.HintFree, s, q2)
		w.want(hs[2].joinPermit(s, q2), cache.Granted)
	}},
	{"the withdrawal of the first wakes the next for a permit", func(w *world) {
		hs := w.hosts(3)
		s := sem{"k", 1}
		hs[2].listening(hs[0])
		t := hs[0].takePermits(s, 1)[0]
		q1, q2 := hs[1].token(), hs[2].token()
		w.want(hs[1].joinPermit(s, q1), cache.Queued)
		w.want(hs[2].joinPermit(s, q2), cache.Queued)
		w.want(hs[0].endPermit(cache.OpRelease, s, t), cache.Done)
		w.want(hs[1].endPermit(cache.OpWithdraw, s, q1), cache.Done)
		hs[2].hintedPermit(cache.HintFree, s, q2)
		w.want(hs[2].joinPermit(s, q2), cache.Granted)
	}},
	{"those who have permits learn that another host waits, and not that their own does", func(w *world) {
		hs := w.hosts(2)
		s := sem{"k", 2}
		hs[0].listening(hs[1])
		held := hs[0].takePermits(s, 2)
		own := hs[0].token()
		w.want(hs[0].joinPermit(s, own), cache.Queued)
		r := hs[0].permit(cache.OpRenew, s, held[0], long)
		w.want(r, cache.Done)
		if r.Wanted {
			w.Error("wanted by its own host")
		}
		w.want(hs[1].joinPermit(s, hs[1].token()), cache.Queued)
		hs[0].hintedPermit(cache.HintWanted, s, held[0])
		r = hs[0].permit(cache.OpRenew, s, held[1], long)
		w.want(r, cache.Done)
		if !r.Wanted {
			w.Error("not wanted by another host")
		}
	}},
	{"nothing is left of a semaphore when all have gone", func(w *world) {
		hs := w.hosts(2)
		s := sem{"k", 2}
		held := hs[0].takePermits(s, 2)
		q1, q2 := hs[1].token(), hs[1].token()
		w.want(hs[1].joinPermit(s, q1), cache.Queued)
		w.want(hs[1].joinPermit(s, q2), cache.Queued)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[0]), cache.Done)
		w.want(hs[1].joinPermit(s, q1), cache.Granted)
		w.want(hs[1].endPermit(cache.OpWithdraw, s, q2), cache.Done)
		w.want(hs[1].endPermit(cache.OpRelease, s, q1), cache.Done)
		w.want(hs[0].endPermit(cache.OpRelease, s, held[1]), cache.Done)
		w.nothingLeft()
	}},
	{"hosts that queue never have more permits than there are, and each gets its turns", func(w *world) { permitRace(w, cache.OpJoin) }},
}

// permitModel runs random ops on one semaphore, old ones among them, and checks each
// answer against who has permits and who queues.
func permitModel(w *world, seed uint64) {
	n := 3
	if w.env.opts.OneHost {
		n = 1
	}
	hs := w.hosts(n)
	rnd := rand.New(rand.NewPCG(seed, 2))
	held, queued, base := map[grip]bool{}, map[grip]bool{}, map[uint64]grip{}
	var old []struct {
		at grip
		op cache.Op
	}
	for range 400 {
		i := rnd.IntN(n)
		op := cache.Op{Mode: cache.Permit, Limit: 3, Key: "m" + string(rune('a'+seed)), TTL: long}
		op.Kind = []cache.OpKind{cache.OpTry, cache.OpTry, cache.OpJoin, cache.OpRenew, cache.OpRelease, cache.OpRelease,
			cache.OpWithdraw, cache.OpPeek}[rnd.IntN(8)]
		switch {
		case op.Kind == cache.OpPeek:
		case len(old) > 0 && rnd.IntN(3) > 0: // about a token of before, the newest mostly
			back := min(rnd.IntN(6), len(old)-1)
			if rnd.IntN(8) == 0 {
				back = rnd.IntN(len(old))
			}
			i, op.Token = old[len(old)-1-back].at.host, old[len(old)-1-back].at.token
		default:
			op.Token = hs[i].token()
		}
		me := grip{i, op.Token}
		if op.Token != 0 {
			old = append(old, struct {
				at grip
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
			w.Fatalf("seed %d: %v by %v is %v (%v); held %v, queued %v", seed, op.Kind, me, r.Status, r.Err, held, queued)
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

// permitRace lets hosts loose on one semaphore, each with several tokens in a batch.
func permitRace(w *world, kind cache.OpKind) {
	const turns, each = 30, 2
	s := sem{"k", 3}
	var inside atomic.Int32
	var wg sync.WaitGroup
	for _, h := range w.hosts(4) {
		wg.Go(func() {
			left := turns
			tokens := map[uint64]bool{} // true while it is held
			for (left > 0 || len(tokens) > 0) && !w.Failed() {
				for left > 0 && len(tokens) < each {
					tokens[h.token()] = false
					left--
				}
				var ops []cache.Op
				for t, held := range tokens {
					op := cache.Op{Kind: kind, Mode: cache.Permit, Limit: s.limit, Key: s.key, Token: t, TTL: long}
					if held {
						inside.Add(-1)
						op.Kind = cache.OpRelease
					}
					ops = append(ops, op)
				}
				for j, r := range h.apply(ops...) {
					switch op := ops[j]; {
					case op.Kind == cache.OpRelease:
						if r.Status != cache.Done {
							h.Errorf("release is %v (%v)", r.Status, r.Err)
						}
						delete(tokens, op.Token)
					case r.Status == cache.Granted:
						tokens[op.Token] = true
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
