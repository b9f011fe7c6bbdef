package storetest

import (
	"github.com/locksidecar/locksidecar/cache"
)

// queueTests are about the queue between hosts.
var queueTests = []test{
	{"hosts that queue get the key in the order in which they came", func(w *world) {
		hs := w.hosts(4)
		t, _ := hs[0].take("k", cache.Exclusive)
		ts := map[*host]uint64{hs[0]: t}
		for _, h := range hs[1:] {
			ts[h] = h.token()
			w.want(h.join("k", ts[h]), cache.Queued)
		}
		for i, h := range hs[:3] {
			// The last token asks first, and repetitions change nothing.
			for j := len(hs) - 1; j > i; j-- {
				w.want(hs[j].join("k", ts[hs[j]]), cache.Queued)
			}
			w.want(h.release("k", ts[h]), cache.Done)
			for j := len(hs) - 1; j > i+1; j-- {
				w.want(hs[j].join("k", ts[hs[j]]), cache.Queued)
			}
			w.want(hs[i+1].join("k", ts[hs[i+1]]), cache.Granted)
		}
	}},
	{"a try does not pass those who queue", func(w *world) {
		hs := w.hosts(3)
		t, _ := hs[0].take("k", cache.Exclusive)
		q := hs[1].token()
		w.want(hs[1].join("k", q), cache.Queued)
		w.want(hs[0].release("k", t), cache.Done)
		w.want(hs[2].try("k", hs[2].token()), cache.Busy)
		w.want(hs[2].tryShared("k", hs[2].token()), cache.Busy)
		w.want(hs[2].join("k", hs[2].token()), cache.Queued)
		w.want(hs[1].join("k", q), cache.Granted)
	}},
	{"a host that is gone is skipped", func(w *world) {
		hs := w.hosts(3, 1)
		t, _ := hs[0].take("k", cache.Exclusive)
		w.want(hs[1].join("k", hs[1].token()), cache.Queued) // and never again
		q := hs[2].token()
		w.want(hs[2].join("k", q), cache.Queued)
		if !hs[1].ttls() {
			hs[1].end()
		}
		w.want(hs[0].release("k", t), cache.Done)
		w.eventually("the next but one has it", func() bool {
			return hs[2].join("k", q).Status == cache.Granted
		})
		r := hs[2].renew("k", q, long)
		w.want(r, cache.Done)
		if r.Contended {
			w.Error("the one that is gone still wants it")
		}
	}},
	{"a host that withdraws is skipped", func(w *world) {
		hs := w.hosts(3)
		t, _ := hs[0].take("k", cache.Exclusive)
		q1, q2 := hs[1].token(), hs[2].token()
		w.want(hs[1].join("k", q1), cache.Queued)
		w.want(hs[2].join("k", q2), cache.Queued)
		w.want(hs[1].withdraw("k", q1), cache.Done)
		w.want(hs[0].release("k", t), cache.Done)
		w.want(hs[2].join("k", q2), cache.Granted)
	}},
	{"a try with a token that queues leaves the queue when it is busy", func(w *world) {
		hs := w.hosts(2)
		t, _ := hs[0].take("k", cache.Exclusive)
		q := hs[1].token()
		w.want(hs[1].join("k", q), cache.Queued)
		w.want(hs[1].try("k", q), cache.Busy)
		// A store may know from its watches alone who waits.
		w.eventually("it no longer queues", func() bool { return !hs[0].renew("k", t, long).Contended })
	}},
	{"a release wakes the next host alone", func(w *world) {
		hs := w.hosts(4)
		ts := make([]uint64, len(hs))
		for _, h := range hs[1:] {
			h.listening(hs[0])
		}
		ts[0], _ = hs[0].take("k", cache.Exclusive)
		for i, h := range hs[1:] {
			ts[i+1] = h.token()
			w.want(h.join("k", ts[i+1]), cache.Queued)
		}
		for i := range hs[:3] {
			hs[3].notHinted("k", cache.HintAvailable, hs[0])
			w.want(hs[i].release("k", ts[i]), cache.Done)
			hs[i+1].hinted("k", cache.HintAvailable)
			w.want(hs[i+1].join("k", ts[i+1]), cache.Granted)
		}
	}},
	{"a release wakes all the readers that are first, and no writer behind them", func(w *world) {
		hs := w.hosts(4)
		for _, h := range hs[1:] {
			h.listening(hs[0])
		}
		t, _ := hs[0].take("k", cache.Exclusive)
		ts := []uint64{hs[1].token(), hs[2].token(), hs[3].token()}
		w.want(hs[1].joinShared("k", ts[0]), cache.Queued)
		w.want(hs[2].joinShared("k", ts[1]), cache.Queued)
		w.want(hs[3].join("k", ts[2]), cache.Queued)
		w.want(hs[0].release("k", t), cache.Done)
		hs[1].hinted("k", cache.HintAvailable)
		hs[2].hinted("k", cache.HintAvailable)
		w.want(hs[2].joinShared("k", ts[1]), cache.Granted)
		w.want(hs[1].joinShared("k", ts[0]), cache.Granted)
		w.want(hs[3].join("k", ts[2]), cache.Queued)
		w.want(hs[1].release("k", ts[0]), cache.Done)
		hs[3].notHinted("k", cache.HintAvailable, hs[0])
		w.want(hs[2].release("k", ts[1]), cache.Done)
		hs[3].hinted("k", cache.HintAvailable)
		w.want(hs[3].join("k", ts[2]), cache.Granted)
	}},
	{"the withdrawal of the first wakes the next", func(w *world) {
		hs := w.hosts(3)
		hs[2].listening(hs[0])
		t, _ := hs[0].take("k", cache.Exclusive)
		q1, q2 := hs[1].token(), hs[2].token()
		w.want(hs[1].join("k", q1), cache.Queued)
		w.want(hs[2].join("k", q2), cache.Queued)
		w.want(hs[0].release("k", t), cache.Done)
		w.want(hs[1].withdraw("k", q1), cache.Done) // it was woken, but it gives up
		hs[2].hinted("k", cache.HintAvailable)
		w.want(hs[2].join("k", q2), cache.Granted)
	}},
	{"the withdrawal of a writer wakes the readers behind it", func(w *world) {
		hs := w.hosts(3)
		hs[2].listening(hs[0])
		hs[0].take("k", cache.Shared)
		q1, q2 := hs[1].token(), hs[2].token()
		w.want(hs[1].join("k", q1), cache.Queued)
		w.want(hs[2].joinShared("k", q2), cache.Queued)
		w.want(hs[1].withdraw("k", q1), cache.Done)
		hs[2].hinted("k", cache.HintAvailable)
		w.want(hs[2].joinShared("k", q2), cache.Granted)
	}},
	{"one who queues is told to the holder", func(w *world) {
		hs := w.hosts(2)
		hs[0].listening(hs[1])
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			k := mode.String()
			hs[0].take(k, mode)
			q := hs[1].token()
			hs[0].hears(k, func() { w.want(hs[1].join(k, q), cache.Queued) }, cache.HintContended)
		}
	}},
	{"a short-lived entry is told to the holder, and is a place in the queue", func(w *world) {
		hs := w.hosts(2)
		hs[0].listening(hs[1])
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			k := mode.String()
			t, _ := hs[0].take(k, mode)
			q := hs[1].token()
			hs[0].hears(k, func() { w.want(hs[1].joinBriefly(k, q), cache.Queued) }, cache.HintTried,
				cache.HintContended)
			w.want(hs[0].release(k, t), cache.Done)
			w.want(hs[1].joinBriefly(k, q), cache.Granted)
			w.want(hs[1].release(k, q), cache.Done)
			w.want(hs[0].try(k, hs[0].token()), cache.Granted)
		}
	}},
	{"a short-lived entry that is withdrawn leaves nothing", func(w *world) {
		hs := w.hosts(2)
		t, _ := hs[0].take("k", cache.Exclusive)
		q := hs[1].token()
		w.want(hs[1].joinBriefly("k", q), cache.Queued)
		w.want(hs[1].withdraw("k", q), cache.Done)
		w.want(hs[0].release("k", t), cache.Done)
		w.want(hs[0].try("k", hs[0].token()), cache.Granted)
	}},
	{"renewals, downgrades and grants say whether another host waits", func(w *world) {
		hs := w.hosts(3)
		t, _ := hs[0].take("k", cache.Exclusive)
		wanted := func(r cache.Result, want bool) {
			w.Helper()
			if r.Contended != want {
				w.Errorf("%v says contended %v", r.Status, r.Contended)
			}
		}
		wanted(hs[0].renew("k", t, long), false)
		q1, q2 := hs[1].token(), hs[2].token()
		w.want(hs[1].join("k", q1), cache.Queued)
		w.want(hs[2].join("k", q2), cache.Queued)
		wanted(hs[0].renew("k", t, long), true)
		wanted(hs[0].try("k", t), true)
		wanted(hs[0].downgrade("k", t), true)
		wanted(hs[0].do(cache.OpRenew, cache.Shared, "k", t, long), true)
		w.want(hs[0].release("k", t), cache.Done)
		r := hs[1].join("k", q1)
		w.want(r, cache.Granted)
		wanted(r, true)
		w.want(hs[1].release("k", q1), cache.Done)
		r = hs[2].join("k", q2)
		w.want(r, cache.Granted)
		wanted(r, false)
	}},
	{"contention on one key does not trouble the others of a batch", func(w *world) {
		hs := w.hosts(3)
		t, _ := hs[0].take("k", cache.Exclusive)
		q := hs[1].token()
		w.want(hs[1].join("k", q), cache.Queued)
		ops := []cache.Op{{Kind: cache.OpJoin, Key: "k", Token: hs[2].token(), TTL: long}}
		for i := range 40 {
			ops = append(ops, cache.Op{Kind: cache.OpTry, Key: key(i), Token: hs[2].token(), TTL: long})
		}
		rs := hs[2].apply(ops...)
		w.want(rs[0], cache.Queued)
		for i, r := range rs[1:] {
			w.want(r, cache.Granted)
			ops[i+1].Kind = cache.OpRenew
		}
		for i, r := range hs[2].apply(ops[1:]...) {
			w.want(r, cache.Done)
			if r.Contended {
				w.Errorf("%s is contended", ops[i+1].Key)
			}
			ops[i+1].Kind = cache.OpRelease
		}
		for _, r := range hs[2].apply(ops[1:]...) {
			w.want(r, cache.Done)
		}
		w.want(hs[0].release("k", t), cache.Done)
		w.want(hs[1].join("k", q), cache.Granted)
	}},
	{"nothing is left when all have gone", func(w *world) {
		hs := w.hosts(4)
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
			k := mode.String()
			t, _ := hs[0].take(k, mode)
			q1, q2 := hs[1].token(), hs[2].token()
			w.want(hs[1].join(k, q1), cache.Queued)
			w.want(hs[2].join(k, q2), cache.Queued)
			q3 := hs[3].token()
			w.want(hs[3].joinShared(k, q3), cache.Queued) // and never again
			w.want(hs[0].release(k, t), cache.Done)
			w.want(hs[2].withdraw(k, q2), cache.Done)
			w.want(hs[1].join(k, q1), cache.Granted)
			w.want(hs[1].downgrade(k, q1), cache.Done)
			w.want(hs[1].release(k, q1), cache.Done)
			if !hs[3].ttls() { // otherwise the place ends by itself
				w.want(hs[3].withdraw(k, q3), cache.Done)
			}
		}
		w.nothingLeft()
	}},
}
