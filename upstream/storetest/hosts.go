package storetest

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// hostTests are about several hosts that do not queue.
var hostTests = []test{
	{"a late request does not shorten a lease", func(w *world) {
		// The lease for short has ended long before the check, when only the longer lease is left.
		h := w.host()
		var keys []string
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			for _, late := range []cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpRenew,
				cache.OpDowngrade} {
				for try := 0; ; try++ {
					key := fmt.Sprint(mode, late, try)
					t, _ := h.take(key, mode)
					begin := time.Now()
					r := h.do(late, mode, key, t, short)
					if r.Status == cache.Refused && slow(begin, short) {
						continue
					}
					if r.Status != cache.Granted {
						w.want(r, cache.Done)
					}
					keys = append(keys, key)
					break
				}
			}
		}
		if h.ttls() {
			w.past(h, short)
		}
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
		if r := hs[0].renew("k", t, long); r.Contended {
			w.Error("a try marks the key as contended")
		}
		w.want(hs[0].release("k", t), cache.Done)
		t, _ = hs[2].take("k", cache.Exclusive)
		w.want(hs[2].release("k", t), cache.Done)
		w.nothingLeft()
	}},
	{"a lease ends with its TTL", func(w *world) {
		hs := w.hosts(2)
		w.skipUnless(hs[0].ttls(), "leases live by the session")
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			k := mode.String()
			old, base := hs[0].takeShort(k, mode)
			t := hs[1].token()
			var next cache.Result
			w.eventually("the key comes free", func() bool {
				next = hs[1].try(k, t)
				return next.Status == cache.Granted
			})
			if next.Base <= base {
				w.Errorf("the next holder has base %d after %d", next.Base, base)
			}
			w.want(hs[0].renew(k, old, long), cache.NotHeld)
			w.want(hs[0].release(k, old), cache.NotHeld)
			w.want(hs[1].renew(k, t, long), cache.Done)
		}
	}},
	{"leases and places in the queue end with the session", func(w *world) {
		hs := w.hosts(4, 0, 1)
		w.skipUnless(!hs[0].ttls(), "leases have TTLs of their own")
		_, base := hs[0].take("k", cache.Exclusive)
		q1, q2 := hs[1].token(), hs[2].token()
		w.want(hs[1].join("k", q1), cache.Queued)
		w.want(hs[2].join("k", q2), cache.Queued)
		hs[0].end()
		hs[1].end()
		var r cache.Result
		w.eventually("the third in the queue has it", func() bool {
			r = hs[2].join("k", q2)
			return r.Status == cache.Granted
		})
		if r.Base <= base {
			w.Errorf("it has base %d after %d", r.Base, base)
		}
		w.want(hs[3].try("k", hs[3].token()), cache.Busy)
		if r := hs[2].renew("k", q2, long); r.Status == cache.Done && r.Contended {
			w.Error("the one that is gone still wants it")
		}
	}},
	{"a repeated acquire, a renewal and a downgrade restart the TTL", func(w *world) {
		h := w.host()
		w.skipUnless(h.ttls(), "leases live by the session")
		t := h.token()
		left := func() int64 { return h.peek("k").Left }
		w.want(h.do(cache.OpTry, cache.Exclusive, "k", t, long), cache.Granted)
		for i, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpRenew, cache.OpDowngrade,
			cache.OpDowngrade, cache.OpRenew} {
			h.do(kind, cache.Mode(i/4), "k", t, long*10*(1<<i))
			if now := left(); now < int64(long*5*(1<<i)) {
				w.Errorf("after %v %d there are %d ns left", kind, i, now)
			}
		}
	}},
	{"a pending release of the host's own is taken over by its next token", func(w *world) {
		hs := w.hosts(2)
		w.skipUnless(hs[0].ttls(), "pending releases are sent one by one")
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
		for _, r := range []cache.Result{hs[1].try("k", hs[1].token()),
			hs[1].tryShared("k", hs[1].token())} {
			w.want(r, cache.Busy)
			if r.Left == -1 && !hs[0].ttls() {
				continue
			}
			if r.Left < int64(long)/2 || r.Left > int64(long) {
				w.Errorf("there are %d ns left", r.Left)
			}
		}
	}},
}

// nothingLeft checks that the store keeps nothing of this world.
func (w *world) nothingLeft() {
	w.Helper()
	if w.env.opts.Residue == nil {
		return
	}
	var left []string
	w.eventually("the store keeps nothing", func() bool {
		w.env.residue.Lock()
		next := w.env.opts.Residue(w.T, w.prefix)
		w.env.residue.Unlock()
		if len(left) > 0 && len(next) > len(left) {
			w.Fatalf("it grows: %q, then %q", left, next)
		}
		left = next
		return len(left) == 0
	})
}
