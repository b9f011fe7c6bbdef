package storetest

import (
	"github.com/locksidecar/locksidecar/cache"
)

// hostTests are about several hosts that do not queue.
var hostTests = []test{
	{"a late request does not shorten a lease", func(w *world) {
		// Short is far over when it is looked at: by then only the longer one stands.
		h := w.host()
		var keys []string
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			for _, late := range []cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpRenew, cache.OpDowngrade} {
				key := mode.String() + late.String()
				t, _ := h.take(key, mode)
				r := h.do(late, mode, key, t, short)
				if r.Status != cache.Granted {
					w.want(r, cache.Done)
				}
				keys = append(keys, key)
			}
		}
		w.past(h, short)
		for _, key := range keys {
			w.want(h.peek(key), cache.Busy)
		}
	}},
	{"a host's lease keeps other hosts out", func(w *world) {
		hs := w.hosts(3)
		t, _ := hs[0].take("k", cache.Exclusive)
		for _, h := range hs[1:] {
			w.want(h.try("k", h.token()), cache.Busy)
			w.want(h.tryShared("k", h.token()), cache.Busy)
			w.want(h.release("k", t), cache.NotHeld) // the same number of another daemon
			w.want(h.renew("k", t, long), cache.NotHeld)
			w.want(h.downgrade("k", t), cache.NotHeld)
			w.want(h.peek("k"), cache.Busy)
		}
		w.want(hs[0].renew("k", t, long), cache.Done)
		w.want(hs[0].release("k", t), cache.Done)
		hs[2].take("k", cache.Exclusive)
	}},
	{"a busy try leaves nothing behind", func(w *world) {
		hs := w.hosts(3)
		t, _ := hs[0].take("k", cache.Exclusive)
		for range 3 {
			w.want(hs[1].try("k", hs[1].token()), cache.Busy)
			w.want(hs[1].tryShared("k", hs[1].token()), cache.Busy)
		}
		if r := hs[0].renew("k", t, long); r.Wanted {
			w.Error("a try marks the key as wanted")
		}
		w.want(hs[0].release("k", t), cache.Done)
		t, _ = hs[2].take("k", cache.Exclusive)
		w.want(hs[2].release("k", t), cache.Done)
		w.nothingLeft()
	}},
	{"a lease ends with its TTL", func(w *world) {
		hs := w.hosts(2)
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			k := mode.String()
			old := hs[0].token()
			r := hs[0].do(cache.OpTry, mode, k, old, short)
			w.want(r, cache.Granted)
			t := hs[1].token()
			var next cache.Result
			w.eventually("the key comes free", func() bool {
				next = hs[1].try(k, t)
				return next.Status == cache.Granted
			})
			if next.Base <= r.Base {
				w.Errorf("the next holder has base %d after %d", next.Base, r.Base)
			}
			w.want(hs[0].renew(k, old, long), cache.NotHeld)
			w.want(hs[0].release(k, old), cache.NotHeld)
			w.want(hs[1].renew(k, t, long), cache.Done)
		}
	}},
	{"a repeated acquire, a renewal and a downgrade restart the TTL", func(w *world) {
		h := w.host()
		t := h.token()
		left := func() int64 { return h.peek("k").Left }
		w.want(h.do(cache.OpTry, cache.Exclusive, "k", t, long), cache.Granted)
		for i, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpRenew, cache.OpDowngrade, cache.OpDowngrade, cache.OpRenew} {
			h.do(kind, cache.Mode(i/4), "k", t, long*10*(1<<i))
			if now := left(); now < int64(long*5*(1<<i)) {
				w.Errorf("after %v %d there are %d ns left", kind, i, now)
			}
		}
	}},
	{"a debt of the host's own is taken over by its next token", func(w *world) {
		hs := w.hosts(2)
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			for _, next := range []cache.Mode{cache.Exclusive, cache.Shared} {
				k := mode.String() + next.String()
				old, base := hs[0].take(k, mode)
				t, base2 := hs[0].take(k, next)
				if base2 <= base {
					w.Errorf("base %d after %d", base2, base)
				}
				w.want(hs[0].release(k, old), cache.NotHeld)
				w.want(hs[1].try(k, hs[1].token()), cache.Busy)
				w.want(hs[0].release(k, t), cache.Done)
				w.want(hs[1].peek(k), cache.Done)
			}
		}
	}},
	{"a busy answer says how long the lease still lasts", func(w *world) {
		hs := w.hosts(2)
		hs[0].take("k", cache.Exclusive)
		for _, r := range []cache.Result{hs[1].try("k", hs[1].token()), hs[1].tryShared("k", hs[1].token())} {
			w.want(r, cache.Busy)
			if r.Left < int64(long)/2 || r.Left > int64(long) {
				w.Errorf("there are %d ns left", r.Left)
			}
		}
	}},
}

// nothingLeft checks that the store keeps nothing of this world.
func (w *world) nothingLeft() {
	w.Helper()
	if w.env.opts.Leftovers == nil {
		return
	}
	var left []string
	w.eventually("the store keeps nothing", func() bool {
		next := w.env.opts.Leftovers(w.T, w.prefix)
		if len(left) > 0 && len(next) > len(left) {
			w.Fatalf("it grows: %q, then %q", left, next)
		}
		left = next
		return len(left) == 0
	})
}
