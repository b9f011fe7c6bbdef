package main

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

func TestComesSoon(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		live, goal, used uint64
		since            time.Duration
		soon             bool
	}{
		{450 * mb, 900 * mb, 700 * mb, time.Second, false},
		{450 * mb, 900 * mb, 750 * mb, time.Second, true},
		{30 * mb, 60 * mb, 59 * mb, time.Second, false}, // that is done in no time
		{450 * mb, 1 << 62, 800 * mb, time.Second, false},
		{450 * mb, 440 * mb, 451 * mb, time.Second, false}, // a limit of memory has been reached
		{450 * mb, 900 * mb, 440 * mb, time.Second, false},
		{450 * mb, 900 * mb, 451 * mb, heapStale, true},
		{30 * mb, 60 * mb, 31 * mb, heapStale, false},
	} {
		if got := comesSoon(c.live, c.goal, c.used, c.since); got != c.soon {
			t.Errorf("of %d, %d, %d after %v: %v", c.live, c.goal, c.used, c.since, got)
		}
	}
}

// The runtime's own collections count, whoever else began them.
func TestTheTimeIsCountedFromTheLastCollection(t *testing.T) {
	h := newHeap()
	now := time.Now()
	h.due(now)
	runtime.GC()
	h.due(now.Add(2 * time.Hour))
	if h.last != now.Add(2*time.Hour) {
		t.Errorf("the last was seen %v ago", now.Add(2*time.Hour).Sub(h.last))
	}
}

// What it is told by is what this runtime has.
func TestHeapIsRead(t *testing.T) {
	h := newHeap()
	runtime.GC()
	if h.due(time.Now()) {
		t.Error("just collected")
	}
	for _, s := range h.samples {
		if s.Value.Kind() != metrics.KindUint64 || s.Value.Uint64() == 0 {
			t.Error(s.Name)
		}
	}
	h.calm = time.Now().Add(time.Hour)
	if h.due(time.Now()) {
		t.Error("twice in a short time")
	}
}
