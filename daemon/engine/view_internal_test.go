package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
)

// stock has a session hold so many keys.
func stock(t testing.TB, e *Engine, n int) {
	s, k := open(t, e)
	for i := range n {
		lockFor(t, s, k, fmt.Sprintf("stock:%07d", i), 0)
	}
	t.Cleanup(func() { e.End(s) })
}

func viewOf(t testing.TB, e *Engine, q ViewQuery) (v View) {
	if err := q.SetDefaults(); err != nil {
		t.Fatal(err)
	}
	e.View(q, &v)
	return v
}

func TestAViewVisitsALimitedNumberOfHolds(t *testing.T) {
	e := testEngine(t)
	const n = 3000
	stock(t, e, n)
	e.maxScanned = 640
	q := &ViewQuery{Sort: "key", Limit: 50}
	looked := 0
	counting := func(t *cache.Table, found []cache.Held, prefix string, room, most int) ([]cache.Held, int, bool) {
		found, n, more := t.ScanHolds(found, prefix, room, most)
		looked += n
		return found, n, more
	}
	rows := newBest(q, orders["key"].holds)
	if scanTables(e, q, rows, counting) || looked != 640 {
		t.Errorf("%d visited", looked)
	}
	looked, q.Sort, e.maxScanned = 0, "age", maxScanned
	if !scanTables(e, q, newBest(q, orders["age"].holds), counting) || looked > shards*51 {
		t.Errorf("by age: %d visited", looked)
	}
	if rows = newBest(&ViewQuery{Sort: "trouble", Limit: 50}, troubleFirst(0)); !scanTables(e,
		&ViewQuery{Sort: "trouble"}, rows, counting) {
		t.Error("few holds are too many")
	}
	v := viewOf(t, e, ViewQuery{Limit: 5})
	for i, h := range v.Holds[1:] { // behind the engine's own
		if h.Key != fmt.Sprintf("stock:%07d", i) {
			t.Errorf("%s is %d", h.Key, i)
		}
	}
	if v.More != (ViewMore{Holds: true}) {
		t.Errorf("%+v", v.More)
	}
	e.maxScanned = 640
	if v = viewOf(t, e, ViewQuery{Sort: "left", Limit: 5}); len(v.Holds) != 5 || !v.More.Unseen ||
		!v.More.Holds {
		t.Errorf("%+v %d", v.More, len(v.Holds))
	}
	e.maxScanned = maxScanned
	if v = viewOf(t, e, ViewQuery{Sort: "key", Desc: true,
		Limit: 1}); v.Holds[0].Key != fmt.Sprintf("stock:%07d", n-1) || v.More.Unseen {
		t.Errorf("%+v", v.More)
	}
	for i := range e.shards {
		if rows, _, more := e.shards[i].table.ScanHolds(nil, "", 1, 1); len(rows) > 0 || more {
			t.Fatal("a scan is left open")
		}
	}
}

func TestAViewOfAKeyOrOfPartOfOne(t *testing.T) {
	e := testEngine(t)
	stock(t, e, 200)
	for q, want := range map[ViewQuery]int{{Key: "stock:0000017"}: 1, {Key: "stock:000001"}: 0,
		{Search: "017"}: 11, {Search: "00010"}: 11, {Search: "x"}: 0,
		{Search: "17", Prefix: "stock:00001"}: 11} {
		for _, q.Sort = range ViewSorts {
			if v := viewOf(t, e, q); len(v.Holds) != want {
				t.Errorf("%+v: %d holds, want %d", q, len(v.Holds), want)
			}
		}
	}
	if err := (&ViewQuery{Key: "a", Prefix: "a"}).SetDefaults(); err == nil {
		t.Error("a key and a prefix")
	}
}

// Holds in trouble come first, then those with waiters.
func TestTroubleComesFirst(t *testing.T) {
	const now = int64(100e9)
	fine := cache.Held{Key: "fine", Fence: 1, Until: now + 20e9, TTL: 30e9}
	waited, late, fixed, degraded, forced := fine, fine, fine, fine, fine
	waited.Waiters = 3
	late.Until, fixed.Until, fixed.Fixed = now+2e9, now+2e9, true
	degraded.Fence, forced.Forced = 0, true
	before := func(a, b cache.Held) bool { return troubleFirst(now)(&a, &b) < 0 }
	for _, h := range []cache.Held{late, degraded, forced} {
		if !before(h, waited) || before(waited, h) {
			t.Errorf("%+v", h)
		}
	}
	if !before(waited, fine) || before(fixed, fine) || before(fine, fixed) {
		t.Error("holds without trouble")
	}
}

func TestBestKeepsTheFirst(t *testing.T) {
	all := make([]int, 5000)
	for i := range all {
		all[i] = i * 7919 % 5003
	}
	for _, q := range []*ViewQuery{{Limit: 1}, {Limit: 50}, {Limit: 50, Desc: true}, {Limit: 5000},
		{Limit: 6000}} {
		b := newBest(q, func(a, b *int) int { return *a - *b })
		most := 0
		for part := range slices.Chunk(all, 97) {
			b.add(part...)
			most = max(most, len(b.rows))
		}
		want := slices.Sorted(slices.Values(all))
		if q.Desc {
			slices.Reverse(want)
		}
		if got := b.sort(); !slices.Equal(got, want[:min(q.Limit, len(want))]) ||
			b.cut != (q.Limit < len(all)) || most > 2*q.Limit+DefaultViewRows {
			t.Errorf("%+v: %d rows, at most %d, cut %v", q, len(got), most, b.cut)
		}
	}
}

// BenchmarkView is what a view costs, and its size, with a million holds.
func BenchmarkView(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		e := testEngine(b)
		stock(b, e, n)
		for _, q := range []ViewQuery{{}, {Limit: MaxViewRows}, {Sort: "key"}, {Prefix: "stock:09999"}} {
			b.Run(fmt.Sprintf("%d/%s", n, q.Values().Encode()), func(b *testing.B) {
				b.ReportAllocs()
				var v View
				for b.Loop() {
					v = viewOf(b, e, q)
				}
				text, _ := json.Marshal(v)
				b.ReportMetric(float64(len(text)), "bytes")
			})
		}
	}
}
