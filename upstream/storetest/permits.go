package storetest

import (
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// sem is a semaphore of a test.
type sem struct {
	key   string
	limit uint32
}

func (h *host) permit(kind cache.OpKind, s sem, token uint64, ttl time.Duration) cache.Result {
	h.Helper()
	return h.apply(cache.Op{Kind: kind, Mode: cache.Permit, Limit: s.limit, Key: s.key,
		Token: token, TTL: ttl})[0]
}

func (h *host) tryPermit(s sem, token uint64) cache.Result {
	h.Helper()
	return h.permit(cache.OpTry, s, token, long)
}

func (h *host) joinPermit(s sem, token uint64) cache.Result {
	h.Helper()
	return h.permit(cache.OpJoin, s, token, long)
}

// endPermit releases or withdraws a token.
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
	h.hearsPermit(func() {}, kind, s, token)
}

// hearsPermit calls cause, which must cause a hint, and waits for the hint like hintedPermit.
func (h *host) hearsPermit(cause func(), kind cache.HintKind, s sem, token uint64) {
	h.Helper()
	for cause(); ; {
		x := h.hint(cause)
		if x.Kind == kind && x.Mode == cache.Permit && x.Key == s.key &&
			(x.Token == 0 || x.Token == token) {
			return
		}
	}
}

// permitTests are about one host. permitHostTests need several hosts, and permitQueueTests need a
// queue between them.
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
		op := cache.Op{Kind: cache.OpRenew, Mode: cache.Permit, Rebase: true, Key: s.key, Token: t,
			TTL: long, Floor: first.Base + 1000}
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
			ops = append(ops, cache.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: s.limit, Key: s.key,
				Token: h.token(), TTL: long})
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
		// One batch releases a permit, renews another and requests a third.
		rs := h.apply(cache.Op{Kind: cache.OpRelease, Mode: cache.Permit, Key: s.key, Token: got[0]},
			cache.Op{Kind: cache.OpRenew, Mode: cache.Permit, Key: s.key, Token: got[1], TTL: long},
			cache.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: s.limit, Key: s.key,
				Token: h.token(), TTL: long})
		w.want(rs[0], cache.Done)
		w.want(rs[1], cache.Done)
		// The order within a batch is not promised.
		if st := rs[2].Status; st != cache.Granted && st != cache.Busy {
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
		w.eventually("the permit is back", func() bool {
			return h.tryPermit(s, next).Status == cache.Granted
		})
		w.want(h.permit(cache.OpRenew, s, lost, long), cache.NotHeld)
		w.want(h.permit(cache.OpRenew, s, kept, long), cache.Done)
		w.want(h.tryPermit(s, h.token()), cache.Busy)
	}},
	{"a permit that has ended is not renewed, even if nobody has taken it since", func(w *world) {
		h := w.host()
		w.skipUnless(h.ttls(), "leases live by the session")
		s := sem{"k", 2}
		lost := h.token()
		w.want(h.permit(cache.OpTry, s, lost, short), cache.Granted)
		h.takePermits(s, 1)
		w.past(h, short)
		renewal := cache.Op{Kind: cache.OpRenew, Mode: cache.Permit, Key: s.key, Token: lost, TTL: long}
		w.want(h.apply(renewal)[0], cache.NotHeld)
		if h.store.Info().Rebase {
			renewal.Rebase = true
			w.want(h.apply(renewal)[0], cache.NotHeld)
		}
		w.want(h.permit(cache.OpTry, s, h.token(), long), cache.Granted)
	}},
	{"permits are listed", func(w *world) {
		h := w.host()
		l := h.store.Capabilities().Lister
		w.skipUnless(l != nil, "the store has no list")
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
		for seed := range uint64(Rounds(1, 8)) {
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
