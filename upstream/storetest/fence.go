package storetest

import (
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// fenceTests are about the order of bases.
var fenceTests = []test{
	{"each later holder has a larger base, whatever the modes", func(w *world) {
		h := w.host()
		var last uint64
		for i := range 30 {
			mode := cache.Mode(i / 2 % 2)
			t, base := h.take("k", mode)
			if base <= last {
				w.Fatalf("holder %d has base %d after %d", i, base, last)
			}
			last = base
			w.want(h.release("k", t), cache.Done)
		}
	}},
	{"a base is larger than the floor", func(w *world) {
		h := w.host()
		w.skipUnless(raises(h.store), "bases are the store's own order")
		_, base := h.take("before", cache.Exclusive)
		for i, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
				floor := base + 1_000_000_000_000
				key := mode.String() + kind.String()
				r := h.apply(cache.Op{Kind: kind, Mode: mode, Key: key, Token: h.token(), TTL: long,
					Floor: floor})[0]
				w.want(r, cache.Granted)
				if r.Base <= floor {
					w.Errorf("%d: base %d is not above the floor %d", i, r.Base, floor)
				}
				base = r.Base
			}
		}
	}},
	{"a floor out of range is refused", func(w *world) {
		h := w.host()
		w.skipUnless(raises(h.store), "bases are the store's own order")
		r := h.apply(cache.Op{Kind: cache.OpTry, Key: "k", Token: h.token(), TTL: long,
			Floor: cache.MaxBase})[0]
		w.want(r, cache.Refused)
		w.want(h.peek("k"), cache.Done)
		h.take("k", cache.Exclusive)
	}},
	{"a renewal fetches a larger base when asked to", func(w *world) {
		h := w.host()
		w.skipUnless(h.store.Info().Rebase, "bases are the store's own order")
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			t, base := h.take("k", mode)
			r := h.apply(cache.Op{Kind: cache.OpRenew, Mode: mode, Key: "k", Token: t, TTL: long,
				Rebase: true, Floor: base + 7})[0]
			w.want(r, cache.Done)
			if r.Base <= base+7 || r.Base > cache.MaxBase {
				w.Errorf("the base is %d after %d with floor %d", r.Base, base, base+7)
			}
			if r = h.renew("k", t, long); r.Base != 0 {
				w.Errorf("a plain renewal has base %d", r.Base)
			}
			w.want(h.release("k", t), cache.Done)
			if _, next := h.take("k", mode); next <= base {
				w.Errorf("the next holder has base %d after %d", next, base)
			}
			w.want(h.release("k", h.last.Load()), cache.Done)
		}
	}},
	{"bases of one batch differ", func(w *world) {
		h := w.host()
		w.skipUnless(h.store.Info().Rebase, "bases are the store's own order, of each key")
		w.skipUnless(!w.env.opts.Counters, "keys have counters of their own")
		ops := make([]cache.Op, 200)
		for i := range ops {
			ops[i] = cache.Op{Kind: cache.OpTry, Mode: cache.Mode(i % 2), Key: key(i),
				Token: h.token(), TTL: long}
		}
		seen := map[uint64]bool{}
		for _, r := range h.apply(ops...) {
			w.want(r, cache.Granted)
			if seen[r.Base] {
				w.Fatalf("base %d twice", r.Base)
			}
			seen[r.Base] = true
		}
	}},
}

// raises reports whether new bases of st are above the floor of the op.
func raises(st upstream.Store) bool { i := st.Info(); return i.Rebase || i.Floors }
