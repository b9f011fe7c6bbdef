package storetest

import (
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

func key(i int) string { return "key" + strconv.Itoa(i) }

// batchTests are about many ops in one Apply.
var batchTests = []test{
	{"a full batch of one kind is answered op by op", func(w *world) {
		h := w.host()
		taken := map[int]uint64{}
		for i := 0; i < upstream.MaxBatch; i += 3 {
			taken[i], _ = h.take(key(i), cache.Exclusive)
		}
		ops := make([]cache.Op, upstream.MaxBatch)
		early := uint64(0) // smaller than all tokens; another host holds the keys
		for i := range ops {
			ops[i] = cache.Op{Kind: cache.OpTry, Key: key(i), Token: early, TTL: long}
		}
		for i, r := range h.apply(ops...) {
			if taken[i] != 0 {
				w.want(r, cache.Busy)
			} else {
				w.want(r, cache.Granted)
			}
		}
		for i := range ops {
			ops[i].Kind = cache.OpRelease
		}
		for i, r := range h.apply(ops...) {
			if taken[i] != 0 {
				w.want(r, cache.NotHeld)
			} else {
				w.want(r, cache.Done)
			}
		}
	}},
	{"a batch of all kinds is answered op by op", func(w *world) {
		h := w.host()
		var ops []cache.Op
		var want []cache.Status
		for i := range 16 {
			n := func(s string) string { return s + key(i) }
			held := func(s string, m cache.Mode) uint64 { t, _ := h.take(n(s), m); return t }
			for _, c := range []struct {
				op   cache.Op
				want cache.Status
			}{
				{cache.Op{Kind: cache.OpTry, Key: n("a"), Token: h.token()}, cache.Granted},
				{cache.Op{Kind: cache.OpTry, Mode: cache.Shared, Key: n("b"), Token: h.token()}, cache.Granted},
				{cache.Op{Kind: cache.OpJoin, Key: n("c"), Token: h.token()}, cache.Granted},
				{cache.Op{Kind: cache.OpRelease, Key: n("d"), Token: held("d", cache.Exclusive)}, cache.Done},
				{cache.Op{Kind: cache.OpRelease, Key: n("e"), Token: held("e", cache.Shared)}, cache.Done},
				{cache.Op{Kind: cache.OpRelease, Key: n("f"), Token: h.token()}, cache.NotHeld},
				{cache.Op{Kind: cache.OpWithdraw, Key: n("g"), Token: h.token()}, cache.Done},
				{cache.Op{Kind: cache.OpDowngrade, Key: n("h"), Token: held("h", cache.Exclusive)}, cache.Done},
				{cache.Op{Kind: cache.OpDowngrade, Key: n("i"), Token: h.token()}, cache.NotHeld},
				{cache.Op{Kind: cache.OpPeek, Key: n("j")}, cache.Done},
				{cache.Op{Kind: cache.OpRenew, Key: n("k"), Token: held("k", cache.Exclusive)}, cache.Done},
				{cache.Op{Kind: cache.OpRenew, Mode: cache.Shared, Key: n("l"), Token: held("l", cache.Shared)},
					cache.Done},
				{cache.Op{Kind: cache.OpRenew, Key: n("m"), Token: h.token()}, cache.NotHeld},
				{cache.Op{Kind: cache.OpTry, Key: n("n"), Token: h.token(), Floor: cache.MaxBase},
					cache.Refused},
			} {
				if c.op.Floor != 0 && !raises(h.store) {
					continue
				}
				c.op.TTL = long
				ops, want = append(ops, c.op), append(want, c.want)
			}
		}
		for i, r := range h.apply(ops...) {
			if r.Status != want[i] {
				w.Errorf("%v of %s is %v (error %v), not %v",
					ops[i].Kind, ops[i].Key, r.Status, r.Err, want[i])
			}
		}
	}},
	{"each op of a batch has its own TTL", func(w *world) {
		h := w.host()
		w.skipUnless(h.ttls(), "leases live by the session")
		var ops []cache.Op
		for i := range 20 {
			ops = append(ops, cache.Op{Kind: cache.OpTry, Mode: cache.Mode(i % 2), Key: key(i),
				Token: h.token(), TTL: time.Duration(i+1) * time.Minute})
		}
		check := func(add time.Duration) {
			w.Helper()
			for i := range ops {
				left := time.Duration(h.peek(key(i)).Left)
				if ends := time.Duration(i+1)*time.Minute + add; left > ends || left < ends-time.Minute {
					w.Errorf("of %v there are %v left", ends, left)
				}
			}
		}
		for _, r := range h.apply(ops...) {
			w.want(r, cache.Granted)
		}
		check(0)
		for i := range ops {
			ops[i].Kind = cache.OpRenew
			ops[i].TTL += time.Hour
		}
		for _, r := range h.apply(ops...) {
			w.want(r, cache.Done)
		}
		check(time.Hour)
		for i := range ops {
			ops[i].Kind = cache.OpDowngrade
			ops[i].TTL += time.Hour
		}
		for _, r := range h.apply(ops...) {
			w.want(r, cache.Done)
		}
		check(2 * time.Hour)
	}},
	{"keys may be of any bytes", func(w *world) {
		h := w.host()
		for _, k := range []string{" ", "a b", "ä{ö}ü", "{", "}", "{}", "a:b:c", "*?[x]", "%s%d",
			"'\"\\", "日本"} {
			t, _ := h.take(k, cache.Exclusive)
			w.want(h.peek(k), cache.Busy)
			w.want(h.downgrade(k, t), cache.Done)
			w.want(h.renew(k, t, long), cache.Done)
			w.want(h.release(k, t), cache.Done)
			w.want(h.peek(k), cache.Done)
		}
	}},
}
