package storetest

import (
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// readerTests are about shared leases of several hosts.
var readerTests = []test{
	{"readers share a key and keep writers out", func(w *world) {
		hs := w.hosts(4)
		var ts []uint64
		for _, h := range hs[:3] {
			t, _ := h.take("k", cache.Shared)
			ts = append(ts, t)
		}
		for i, h := range hs[:3] {
			w.want(hs[3].try("k", hs[3].token()), cache.Busy)
			w.want(h.do(cache.OpRenew, cache.Shared, "k", ts[i], long), cache.Done)
			w.want(h.release("k", ts[i]), cache.Done)
		}
		hs[3].take("k", cache.Exclusive)
	}},
	{"fences rise from reader to writer to reader", func(w *world) {
		hs := w.hosts(3)
		var last uint64
		for range 5 {
			t0, b0 := hs[0].take("k", cache.Shared)
			t1, b1 := hs[1].take("k", cache.Shared)
			if min(b0, b1) <= last {
				w.Fatalf("readers have %d and %d after a writer's %d", b0, b1, last)
			}
			w.want(hs[0].release("k", t0), cache.Done)
			w.want(hs[1].release("k", t1), cache.Done)
			t2, b2 := hs[2].take("k", cache.Exclusive)
			if b2 <= max(b0, b1) {
				w.Fatalf("a writer has %d after readers' %d and %d", b2, b0, b1)
			}
			last = b2
			w.want(hs[2].release("k", t2), cache.Done)
		}
	}},
	{"the key is held as long as the longest reader", func(w *world) {
		hs := w.hosts(3)
		w.skipUnless(hs[0].ttls(), "leases live by the session")
		a, _ := hs[0].take("k", cache.Shared)
		hs[1].takeShort("k", cache.Shared)
		w.past(hs[2], short)
		w.want(hs[2].try("k", hs[2].token()), cache.Busy)
		w.want(hs[0].do(cache.OpRenew, cache.Shared, "k", a, long), cache.Done)
		w.want(hs[0].release("k", a), cache.Done)
		w.eventually("the key is free", func() bool {
			return hs[2].try("k", hs[2].last.Load()).Status == cache.Granted
		})
	}},
	{"the key comes free with the readers that are left, not with one that has gone", func(w *world) {
		hs := w.hosts(3)
		w.skipUnless(hs[0].ttls(), "leases live by the session")
		a, _ := hs[0].take("k", cache.Shared)
		hs[1].takeShort("k", cache.Shared)
		w.want(hs[0].release("k", a), cache.Done)
		t := hs[2].token()
		w.eventually("the key is free", func() bool { return hs[2].try("k", t).Status == cache.Granted })
	}},
	{"a downgrade lets readers in and keeps writers out", func(w *world) {
		hs := w.hosts(3)
		t, _ := hs[0].take("k", cache.Exclusive)
		w.want(hs[1].tryShared("k", hs[1].token()), cache.Busy)
		w.want(hs[0].downgrade("k", t), cache.Done)
		r, _ := hs[1].take("k", cache.Shared)
		w.want(hs[2].try("k", hs[2].token()), cache.Busy)
		w.want(hs[0].release("k", t), cache.Done)
		w.want(hs[2].try("k", hs[2].token()), cache.Busy)
		w.want(hs[1].release("k", r), cache.Done)
		hs[2].take("k", cache.Exclusive)
	}},
	{"a downgrade wakes the readers that queue first", func(w *world) {
		hs := w.hosts(3)
		hs[1].listening(hs[0])
		t, _ := hs[0].take("k", cache.Exclusive)
		r := hs[1].token()
		w.want(hs[1].joinShared("k", r), cache.Queued)
		w.want(hs[0].downgrade("k", t), cache.Done)
		hs[1].hinted("k", cache.HintAvailable)
		w.want(hs[1].joinShared("k", r), cache.Granted)
	}},
	{"a writer that queues is not starved by readers", func(w *world) {
		hs := w.hosts(3)
		w.skipUnless(hs[0].store.Info().Queue, "there is no queue between hosts")
		a, _ := hs[0].take("k", cache.Shared)
		wr := hs[1].token()
		w.want(hs[1].join("k", wr), cache.Queued)
		w.want(hs[2].tryShared("k", hs[2].token()), cache.Busy)
		b := hs[2].token()
		w.want(hs[2].joinShared("k", b), cache.Queued)
		if r := hs[0].do(cache.OpRenew, cache.Shared, "k", a, long); r.Status != cache.Done ||
			!r.Contended {
			w.Errorf("the reader's renewal is %v, contended %v", r.Status, r.Contended)
		}
		w.want(hs[0].release("k", a), cache.Done)
		w.want(hs[2].joinShared("k", b), cache.Queued)
		w.want(hs[1].join("k", wr), cache.Granted)
		w.want(hs[2].joinShared("k", b), cache.Queued)
		w.want(hs[1].release("k", wr), cache.Done)
		w.want(hs[2].joinShared("k", b), cache.Granted)
	}},
	{"a reader's lease that has ended is not renewed, even if others read", func(w *world) {
		hs := w.hosts(2)
		w.skipUnless(hs[0].ttls(), "leases end with the store session")
		for _, kind := range []cache.OpKind{cache.OpRenew, cache.OpDowngrade} {
			key := kind.String()
			a, _ := hs[0].takeShort(key, cache.Shared)
			b, _ := hs[1].take(key, cache.Shared)
			w.past(hs[0], short)
			w.want(hs[0].do(kind, cache.Shared, key, a, long), cache.NotHeld)
			w.want(hs[1].do(kind, cache.Shared, key, b, long), cache.Done)
		}
	}},
	{"readers that queue behind a writer get in together", func(w *world) {
		hs := w.hosts(4)
		wr, _ := hs[0].take("k", cache.Exclusive)
		var ts []uint64
		for _, h := range hs[1:] {
			t := h.token()
			w.want(h.joinShared("k", t), cache.Queued)
			ts = append(ts, t)
		}
		w.want(hs[0].release("k", wr), cache.Done)
		for i := range ts { // in any order
			h := hs[len(ts)-i]
			w.want(h.joinShared("k", ts[len(ts)-1-i]), cache.Granted)
		}
	}},
	{"a reader that joins as a writer under its token takes no place before other readers",
		func(w *world) {
			hs := w.hosts(2)
			a, _ := hs[0].take("k", cache.Shared)
			w.want(hs[0].join("k", a), cache.Queued)
			w.want(hs[1].tryShared("k", hs[1].token()), cache.Granted)
			if r := hs[0].do(cache.OpRenew, cache.Shared, "k", a, long); r.Status != cache.Done ||
				r.Contended {
				w.Errorf("the reader's renewal is %v, contended %v", r.Status, r.Contended)
			}
		}},
	{"a repeated shared acquire is granted past a writer that queues", func(w *world) {
		hs := w.hosts(2)
		a, _ := hs[0].take("k", cache.Shared)
		wr := hs[1].token()
		w.want(hs[1].join("k", wr), cache.Queued)
		w.want(hs[0].tryShared("k", a), cache.Granted)
	}},
}

// past waits until a lease that was granted for ttl before has ended at the store.
func (w *world) past(h *host, ttl time.Duration) {
	w.Helper()
	const key = "past"
	h.takeFor(key, cache.Exclusive, ttl+50*time.Millisecond)
	w.eventually("the time is over", func() bool { return h.peek(key).Status == cache.Done })
}
