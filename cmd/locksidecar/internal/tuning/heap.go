package tuning

import (
	"math"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
)

// A collection of a heap with a million locks takes one second of processor time. It runs while
// clients send requests. But with one thread for both, a goroutine is always ready to run, and then
// Go's scheduler polls the network only every ten milliseconds. The number of threads cannot grow
// until the collection is over. So the daemon itself begins the collections of large heaps, shortly
// before the runtime would, with as many threads as there can be.
//
// The runtime begins a collection when the heap has grown by a percentage, and also two minutes
// after the last collection. A daemon that only renews has made little garbage by then, so such a
// collection would cost as much as any other and free little. The runtime skips it only if no
// percentage is set. So large heaps have a memory limit instead, which moves with the size of the
// live objects.

const (
	heapLarge = 128 << 20 // goal of the runtime, in bytes, from which on a heap is large
	// heapFilled is the share of the bytes between two collections at which the daemon begins the next
	// one. The runtime begins at 0.7 at the earliest.
	heapFilled = 0.65
	// heapCalm is the least time between two collections that the daemon begins. If a memory limit
	// leaves little room, the runtime collects all the time.
	heapCalm = 2 * time.Second

	// heapStale is the time after which the daemon begins a collection in any case, so that the memory
	// of released locks is returned.
	heapStale      = 5 * time.Minute
	heapStaleTheir = 100 * time.Second // the same if the user has set the percentage

	// heapLimit is the memory limit, as a multiple of the live bytes. At the limit the runtime
	// begins a collection by itself. It keeps 2.2 times the live bytes, and would have to return
	// the memory above a lower limit first.
	heapLimit = 2.5
)

// heap reads how full the heap is. It is for one goroutine.
type heap struct {
	ours   bool // the user has set neither a percentage nor a limit
	paced  bool // our limit replaces the percentage
	cycles uint64
	last   time.Time // when the last collection was noticed
	calm   time.Time // no collection is due before this time
	seen   heapSeen

	samples []metrics.Sample
}

// heapSeen is a sample. Sizes are in bytes.
type heapSeen struct {
	live   uint64 // after the last collection
	goal   uint64 // the size at which the runtime wants to finish the next collection
	used   uint64
	mapped uint64 // memory that the process has from the system and has not returned
	free   uint64 // the part of it that is in no object
}

func newHeap(env config.Env) *heap {
	percent, _ := env("GOGC")
	limit, _ := env("GOMEMLIMIT")
	return &heap{ours: percent == "" && limit == "", samples: []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/gc/heap/goal:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}}
}

func (h *heap) read() (cycles uint64) {
	metrics.Read(h.samples)
	n := func(i int) uint64 { return h.samples[i].Value.Uint64() }
	h.seen = heapSeen{live: n(1), goal: n(2), used: n(3), free: n(4), mapped: n(5) - n(6)}
	return n(0)
}

// due reports that a long collection will begin soon. It does not report that again within
// heapCalm. After each collection, whether the daemon or the runtime began it, due sets what begins
// the next one.
func (h *heap) due(now time.Time) bool {
	if n := h.read(); n != h.cycles {
		h.cycles, h.last = n, now
		h.pace()
	}
	if now.Before(h.calm) || !h.seen.comesSoon(h.paced, now.Sub(h.last)) {
		return false
	}
	h.calm = now.Add(heapCalm)
	return true
}

// pace sets what begins the next collection.
func (h *heap) pace() {
	if !h.ours {
		return
	}
	limit := h.seen.limit()
	if h.paced = limit != math.MaxInt64; h.paced {
		setCollector(-1, limit)
	} else {
		setCollector(100, limit)
	}
}

// limit returns the memory limit that replaces the percentage; math.MaxInt64 for none. A heap
// with much memory to return has none, because the runtime returns it only while there is a
// percentage.
func (s heapSeen) limit() int64 {
	limit := s.mapped - s.free - s.used + uint64(heapLimit*float64(s.live))
	if 2*s.live < heapLarge || s.mapped > limit {
		return math.MaxInt64
	}
	return int64(limit)
}

// comesSoon reports whether a collection of a large heap will begin soon. since is the time since
// the last one.
func (s heapSeen) comesSoon(paced bool, since time.Duration) bool {
	goal, stale := s.goal, heapStaleTheir
	if paced {
		goal, stale = 2*s.live, heapStale
	}
	if goal < heapLarge || goal > 1<<60 { // the heap is small, or there are no collections at all
		return false
	}
	filled := goal > s.live && s.used > s.live &&
		float64(s.used-s.live) >= heapFilled*float64(goal-s.live)
	return filled || since >= stale
}

// collect blocks until a collection is over.
func (t *Threads) collect() {
	t.askAll(true)
	defer t.askAll(false)
	runtime.GC()
}
