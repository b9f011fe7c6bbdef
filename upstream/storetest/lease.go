package storetest

import (
	"context"
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

// leaseTests are about one host and one key.
var leaseTests = []test{
	{"a try takes a free key", func(w *world) {
		h := w.host()
		w.want(h.try("k", h.token()), cache.Granted)
	}},
	{"a shared try takes a free key", func(w *world) {
		h := w.host()
		w.want(h.tryShared("k", h.token()), cache.Granted)
	}},
	{"a join takes a free key", func(w *world) {
		h := w.host()
		w.want(h.join("k", h.token()), cache.Granted)
		w.want(h.joinShared("l", h.token()), cache.Granted)
	}},
	{"another token finds the key busy", func(w *world) {
		// A request with a smaller number is late, because a larger number of the same daemon has
		// replaced its lease.
		h := w.host()
		early := h.token()
		h.take("k", cache.Exclusive)
		w.want(h.try("k", early), cache.Busy)
		w.want(h.tryShared("k", early), cache.Busy)
	}},
	{"the same token is granted again", func(w *world) {
		h := w.host()
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			key := mode.String()
			t, base := h.take(key, mode)
			for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
				r := h.do(kind, mode, key, t, long)
				w.want(r, cache.Granted)
				if r.Base < base || r.Base == base && h.store.Info().Rebase {
					w.Errorf("%v again has base %d after %d", kind, r.Base, base)
				}
			}
			w.want(h.release(key, t), cache.Done)
			w.want(h.peek(key), cache.Done)
		}
	}},
	{"the same token in the other mode is turned down and changes nothing", func(w *world) {
		h := w.host()
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			key := mode.String()
			t, _ := h.take(key, mode)
			held := h.peek(key)
			for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
				want := cache.Busy // after which a join would have lost the lease
				if kind == cache.OpJoin {
					want = cache.Queued
				}
				if r := h.do(kind, cache.Exclusive+cache.Shared-mode, key, t, long); r.Status != want {
					w.Errorf("%v in the other mode than %v is %v, not %v",
						kind, mode, r.Status, want)
				}
				if now := h.peek(key); now.Status != held.Status || now.Mode != held.Mode {
					w.Errorf("the key is %v %v, and was %v %v",
						now.Status, now.Mode, held.Status, held.Mode)
				}
			}
			w.want(h.do(cache.OpRenew, mode, key, t, long), cache.Done)
			w.want(h.do(cache.OpTry, mode, key, t, long), cache.Granted)
			w.want(h.do(cache.OpRelease, mode, key, t, 0), cache.Done)
			w.want(h.peek(key), cache.Done)
			h.take(key, cache.Exclusive)
		}
	}},
	{"a release frees the key, and only once", func(w *world) {
		h := w.host()
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			t, _ := h.take("k", mode)
			w.want(h.release("k", t), cache.Done)
			w.want(h.peek("k"), cache.Done)
			w.want(h.release("k", t), cache.NotHeld)
		}
	}},
	{"a release does not have to know the mode", func(w *world) {
		h := w.host()
		t, _ := h.take("k", cache.Shared)
		w.want(h.do(cache.OpRelease, cache.Exclusive, "k", t, 0), cache.Done)
		t, _ = h.take("k", cache.Exclusive)
		w.want(h.do(cache.OpRelease, cache.Shared, "k", t, 0), cache.Done)
	}},
	{"a late release does not touch a later lease", func(w *world) {
		h := w.host()
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			old, _ := h.take("k", cache.Exclusive)
			w.want(h.release("k", old), cache.Done)
			t, _ := h.take("k", mode)
			w.want(h.release("k", old), cache.NotHeld)
			w.want(h.withdraw("k", old), cache.Done)
			w.want(h.renew("k", t, long), cache.Done)
			w.want(h.release("k", t), cache.Done)
		}
	}},
	{"a late renewal does not touch a later lease", func(w *world) {
		h := w.host()
		old, _ := h.take("k", cache.Exclusive)
		w.want(h.release("k", old), cache.Done)
		h.take("k", cache.Exclusive)
		w.want(h.renew("k", old, long), cache.NotHeld)
		w.want(h.downgrade("k", old), cache.NotHeld)
	}},
	{"a late acquire does not touch a later lease", func(w *world) {
		h := w.host()
		late := h.token()
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			t, _ := h.take("k", mode)
			w.want(h.try("k", late), cache.Busy)
			w.want(h.renew("k", t, long), cache.Done)
			w.want(h.release("k", t), cache.Done)
		}
	}},
	{"a withdrawal releases what was granted", func(w *world) {
		h := w.host()
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			t := h.token()
			w.want(h.do(cache.OpJoin, mode, "k", t, long), cache.Granted)
			w.want(h.withdraw("k", t), cache.Done)
			w.want(h.peek("k"), cache.Done)
		}
	}},
	{"a withdrawal of nothing is done", func(w *world) {
		h := w.host()
		w.want(h.withdraw("k", h.token()), cache.Done)
	}},
	{"a renewal of nothing is not held", func(w *world) {
		h := w.host()
		w.want(h.renew("k", h.token(), long), cache.NotHeld)
		w.want(h.do(cache.OpRenew, cache.Shared, "k", h.token(), long), cache.NotHeld)
		w.want(h.downgrade("k", h.token()), cache.NotHeld)
		w.want(h.peek("k"), cache.Done)
	}},
	{"a lease that has ended is not renewed, even if nobody has taken the key since", func(w *world) {
		h := w.host()
		w.skipUnless(h.ttls(), "leases end with the store session")
		tokens := map[string]uint64{}
		modes := []cache.Mode{cache.Exclusive, cache.Shared}
		late := []cache.OpKind{cache.OpRenew, cache.OpDowngrade}
		for _, mode := range modes {
			for _, kind := range late {
				key := fmt.Sprint(mode, kind)
				tokens[key], _ = h.takeShort(key, mode)
			}
		}
		w.past(h, short)
		for _, mode := range modes {
			for _, kind := range late {
				key := fmt.Sprint(mode, kind)
				w.want(h.do(kind, mode, key, tokens[key], long), cache.NotHeld)
				w.want(h.peek(key), cache.Done)
			}
		}
	}},
	{"a peek says how the key is held, and for how long if known", func(w *world) {
		h := w.host()
		w.want(h.peek("k"), cache.Done)
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			t, _ := h.take("k", mode)
			r := h.peek("k")
			w.want(r, cache.Busy)
			if r.Mode != mode || r.Left == 0 || r.Left < -1 || r.Left > int64(long) {
				w.Errorf("held %v, the peek says %v with %d ns left", mode, r.Mode, r.Left)
			}
			w.want(h.release("k", t), cache.Done)
		}
	}},
	{"a downgrade makes the lease shared, again and again", func(w *world) {
		h := w.host()
		t, _ := h.take("k", cache.Exclusive)
		for range 2 {
			w.want(h.downgrade("k", t), cache.Done)
			r := h.peek("k")
			w.want(r, cache.Busy)
			if r.Mode != cache.Shared {
				w.Errorf("after the downgrade it is %v", r.Mode)
			}
		}
		w.want(h.do(cache.OpRenew, cache.Shared, "k", t, long), cache.Done)
		w.want(h.release("k", t), cache.Done)
		w.want(h.peek("k"), cache.Done)
	}},
	{"leases on session stores have the session's deadline", func(w *world) {
		h := w.host()
		t := h.token()
		for _, r := range []cache.Result{h.try("k", t), h.renew("k", t, long), h.downgrade("k", t)} {
			if (r.Session != 0) != (h.store.Info().Session != 0) || (r.Session != 0) != (r.SessionNo != 0) {
				w.Errorf("the store's session is %v, a result's deadline %d of number %d",
					h.store.Info().Session, r.Session, r.SessionNo)
			}
		}
	}},
	{"a batch whose time is over is not granted", func(w *world) {
		h := w.host()
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		op := []cache.Op{{Kind: cache.OpTry, Key: "k", Token: h.token(), TTL: long}}
		res := make([]cache.Result, 1)
		_ = h.store.Apply(ctx, op, res)
		if !slices.Contains([]cache.Status{cache.Refused, cache.Unknown, cache.Granted}, res[0].Status) {
			w.Errorf("it is %v", res[0].Status)
		}
		if res[0].Status == cache.Refused {
			w.want(h.peek("k"), cache.Done)
		}
		w.want(h.withdraw("k", op[0].Token), cache.Done)
		h.take("k", cache.Exclusive)
	}},
	{"closing ends the streams", func(w *world) {
		s := w.env.newHost(w.T, w.prefix)
		hints, sessions := s.Hints(), s.Sessions()
		if err := s.Close(); err != nil {
			w.Fatal(err)
		}
		if hints != nil {
			for range hints {
			}
		}
		if sessions != nil {
			for range sessions {
			}
		}
	}},
}
