package tuning

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

const mb = 1 << 20

func TestComesSoon(t *testing.T) {
	for _, c := range []struct {
		live, goal, used uint64
		paced            bool
		since            time.Duration
		soon             bool
	}{
		{450 * mb, 900 * mb, 700 * mb, false, time.Second, false},
		{450 * mb, 900 * mb, 750 * mb, false, time.Second, true},
		{30 * mb, 60 * mb, 59 * mb, false, time.Second, false}, // a collection takes almost no time
		{450 * mb, 1 << 62, 800 * mb, false, time.Hour, false}, // the user has turned collections off
		// the process has reached its memory limit
		{450 * mb, 440 * mb, 451 * mb, false, time.Second, false},
		{450 * mb, 900 * mb, 440 * mb, false, time.Second, false},
		{450 * mb, 900 * mb, 451 * mb, false, heapStaleTheir, true},
		{30 * mb, 60 * mb, 31 * mb, false, heapStaleTheir, false},
		{450 * mb, 1100 * mb, 700 * mb, true, time.Second, false},
		{450 * mb, 1100 * mb, 750 * mb, true, time.Second, true},
		{450 * mb, 1100 * mb, 451 * mb, true, heapStaleTheir, false},
		{450 * mb, 1100 * mb, 451 * mb, true, heapStale, true},
	} {
		s := heapSeen{live: c.live, goal: c.goal, used: c.used}
		if got := s.comesSoon(c.paced, c.since); got != c.soon {
			t.Errorf("%+v after %v: %v", s, c.since, got)
		}
	}
}

func TestLimitInPlaceOfThePercentage(t *testing.T) {
	for _, c := range []struct {
		seen  heapSeen
		limit int64
	}{
		{heapSeen{live: 30 * mb, used: 31 * mb, free: mb, mapped: 50 * mb}, math.MaxInt64},
		{heapSeen{live: 400 * mb, used: 410 * mb, free: 300 * mb, mapped: 750 * mb}, 1040 * mb},
		// there is much memory to return
		{heapSeen{live: 400 * mb, used: 410 * mb, free: 900 * mb, mapped: 1350 * mb}, math.MaxInt64},
	} {
		if got := c.seen.limit(); got != c.limit {
			t.Errorf("%+v: %d", c.seen, got/mb)
		}
	}
}

func unset(string) (string, bool) { return "", false }

// The runtime's own collections count, and so do those that other code began.
func TestTheTimeIsCountedFromTheLastCollection(t *testing.T) {
	h := newHeap(unset)
	now := time.Now()
	h.due(now)
	runtime.GC()
	h.due(now.Add(2 * time.Hour))
	if h.last != now.Add(2*time.Hour) {
		t.Errorf("the last was seen %v ago", now.Add(2*time.Hour).Sub(h.last))
	}
}

// This runtime has the metrics that heap reads.
func TestHeapIsRead(t *testing.T) {
	h := newHeap(unset)
	runtime.GC()
	if h.due(time.Now()) {
		t.Error("just collected")
	}
	for _, s := range h.samples {
		if s.Value.Kind() != metrics.KindUint64 {
			t.Error(s.Name)
		}
	}
	if s := h.seen; s.live == 0 || s.goal == 0 || s.used == 0 || s.mapped < s.used {
		t.Errorf("%+v", s)
	}
}

// A large heap loses its percentage, and gets it back when it is small again. The user's percentage
// stays.
func TestLargeHeapsArePaced(t *testing.T) {
	percent := func() int {
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p
	}
	h, his := newHeap(unset), newHeap(func(name string) (string, bool) { return "50", name == "GOGC" })
	large := make([]byte, heapLarge)
	runtime.GC()
	his.due(time.Now())
	if p := percent(); p != 100 {
		t.Errorf("a percentage of %d in place of the user's", p)
	}
	if h.due(time.Now()); percent() != -1 || debug.SetMemoryLimit(-1) == math.MaxInt64 {
		t.Errorf("a percentage of %d for %+v", percent(), h.seen)
	}
	if due := h.due(time.Now().Add(heapStale)); !due || h.due(time.Now().Add(heapStale)) {
		t.Error("not due when it is stale, or twice in a short time")
	}
	runtime.KeepAlive(large)
	runtime.GC()
	if h.due(time.Now()); percent() != 100 || debug.SetMemoryLimit(-1) != math.MaxInt64 {
		t.Errorf("a percentage of %d for %+v", percent(), h.seen)
	}
}
