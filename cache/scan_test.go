package cache

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// keysOf goes through all holds in pieces.
func (b *bench) keysOf(newest bool, piece int, between func()) (keys []string) {
	b.tab.BeginScan(newest)
	defer b.tab.EndScan()
	var rows []Held
	for more := true; more; between() {
		looked := 0
		if rows, looked, more = b.tab.ScanHolds(rows[:0], "", 1<<20, piece); looked > piece {
			b.t.Fatalf("%d looked at, of %d", looked, piece)
		}
		for _, r := range rows {
			keys = append(keys, r.Key)
		}
	}
	return keys
}

func (b *bench) hold(s *Session, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("k%03d", i))
		b.now += second / 1000
		b.acquire(s, keys[i], nil)
		b.granted(OpTry, uint64(i+1))
	}
	return keys
}

func TestAScanGoesByAge(t *testing.T) {
	b := newBench(t, nil)
	keys := b.hold(b.session(), 20)
	for _, piece := range []int{1, 3, 7, 100} {
		if got := b.keysOf(false, piece, func() {}); !slices.Equal(got, keys) {
			t.Errorf("by %d: %v", piece, got)
		}
	}
	slices.Reverse(keys)
	if got := b.keysOf(true, 6, func() {}); !slices.Equal(got, keys) {
		t.Errorf("from the newest: %v", got)
	}
}

func TestAScanOutlivesTheHoldThatItWasAt(t *testing.T) {
	for _, newest := range []bool{false, true} {
		b := newBench(t, nil)
		s := b.session()
		keys := b.hold(s, 10)
		step := 0
		got := b.keysOf(newest, 2, func() {
			if step++; step > 1 {
				return
			}
			for _, i := range []int{2, 3, 6, 7} { // the next ones, in either direction
				h := b.tab.locks[keys[i]].holds.first
				b.release(s, keys[i], h.fence)
				b.answer(b.op(OpRelease), Result{Status: Done})
			}
			b.acquire(s, "new", nil)
			b.granted(OpTry, 100)
		})
		want := []string{"k000", "k001", "k004", "k005", "k008", "k009", "new"}
		if newest {
			want = []string{"k009", "k008", "k005", "k004", "k001", "k000"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("newest %v: %v", newest, got)
		}
	}
}

func TestAScanIsBounded(t *testing.T) {
	b := newBench(t, nil)
	b.hold(b.session(), 50)
	b.tab.BeginScan(false)
	for _, tc := range []struct {
		prefix                    string
		room, most, found, looked int
		more                      bool
	}{
		{"", 5, 100, 5, 5, true},
		{"k00", 100, 10, 5, 10, true}, // from the sixth on
		{"none", 100, 20, 0, 20, true},
		{"k04", 3, 100, 3, 8, true},
		{"k04", 100, 100, 7, 7, false},
		{"", 100, 100, 0, 0, false},
	} {
		found, looked, more := b.tab.ScanHolds(nil, tc.prefix, tc.room, tc.most)
		if len(found) != tc.found || looked != tc.looked || more != tc.more {
			t.Errorf("%+v: found %d, looked at %d, more %v", tc, len(found), looked, more)
		}
	}
}

func TestAScanShowsWaitersInTheirPlaces(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "a", nil)
	b.granted(OpTry, 1)
	b.acquire(s, "b", nil)
	b.granted(OpTry, 2)
	for i := range uint64(3) {
		w := b.session()
		b.acquire(w, "a", func(q *Acquire) { q.Wait, q.Owner = int64(time.Hour), i })
		if i == 1 {
			b.acquire(w, "b", waits)
		}
	}
	want := []string{"a1", "a2", "b1", "a3"}
	for _, newest := range []bool{false, true} {
		var got []string
		b.tab.BeginScan(newest)
		for more := true; more; {
			var rows []Waiting
			rows, _, more = b.tab.ScanWaiters(nil, "", 10, 1)
			for _, w := range rows {
				if w.Holder != s || (w.Key == "a") != (w.Deadline < Forever) {
					t.Errorf("%+v", w)
				}
				got = append(got, fmt.Sprint(w.Key, w.Place))
			}
		}
		b.tab.EndScan()
		if !slices.Equal(got, want) {
			t.Errorf("newest %v: %v, want %v", newest, got, want)
		}
		slices.Reverse(want)
	}
}
