package main

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// A collection of a heap with a million locks is half a second's work of one processor. It is done
// beside what clients ask for; but with one thread for both something is always ready to run, and
// Go's scheduler then asks only each ten milliseconds what there is to read. More threads cannot be
// had until the collection is over. So the daemon begins those of large heaps itself, shortly before
// the runtime would, with all the threads there can be. The runtime begins one when the heap has grown
// by so much, and two minutes behind the last.

const (
	heapLarge  = 128 << 20 // bytes at which the runtime means to have collected: from here on
	heapFilled = 0.65      // of what may be allocated between two; the runtime begins at 0.7 at the soonest
	heapStale  = 100 * time.Second
	heapCalm   = 2 * time.Second // between two: where a limit of memory leaves little, the runtime collects all the time
)

// heap reads how full the heap is. It is for one goroutine.
type heap struct {
	samples [4]metrics.Sample
	cycles  uint64    // collections so far
	last    time.Time // when one more was seen
	calm    time.Time // nothing is due before
}

func newHeap() *heap {
	return &heap{samples: [...]metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/goal:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"}}}
}

// due says, once in a while, that a collection comes soon and takes long.
func (h *heap) due(now time.Time) bool {
	if now.Before(h.calm) {
		return false
	}
	metrics.Read(h.samples[:])
	s := &h.samples
	if n := s[3].Value.Uint64(); n != h.cycles {
		h.cycles, h.last = n, now
	}
	if !comesSoon(s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64(), now.Sub(h.last)) {
		return false
	}
	h.calm = now.Add(heapCalm)
	return true
}

// comesSoon says so of bytes that were live behind the last collection, at which the next is meant to
// be over, and that are in use, and of the time since the last.
func comesSoon(live, goal, used uint64, since time.Duration) bool {
	if goal < heapLarge {
		return false
	}
	filled := goal > live && used > live && float64(used-live) >= heapFilled*float64(goal-live)
	return filled || since >= heapStale
}

// collect blocks until a collection is over.
func (t *threads) collect() {
	t.askAll(true)
	defer t.askAll(false)
	runtime.GC()
}
