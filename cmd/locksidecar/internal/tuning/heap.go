package tuning

import (
	"math"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
)

// A collection of a heap with a million locks is a second's work of a processor. It is done
// beside what clients ask for; but with one thread for both something is always ready to run, and
// Go's scheduler then asks only each ten milliseconds what there is to read. More threads cannot be
// had until the collection is over. So the daemon begins those of large heaps itself, shortly before
// the runtime would, with all the threads there can be.
//
// The runtime begins one when the heap has grown by so much, and two minutes behind the last. By then
// a daemon that does nothing but renew has made little garbage: each of these collections would be as
// dear as any other, and for little. Only with no percentage set the runtime does without. So for large
// heaps there is none, and a limit of memory instead, which moves with what is live.

const (
	heapLarge  = 128 << 20       // bytes at which the runtime would mean to have collected: from here on
	heapFilled = 0.65            // of what may be allocated between two; the runtime begins at 0.7 at the soonest
	heapCalm   = 2 * time.Second // between two: where a limit of memory leaves little, the runtime collects all the time

	heapStale      = 5 * time.Minute   // behind the last, whatever there is: what has been released goes back
	heapStaleTheir = 100 * time.Second // where the percentage is the user's

	// Of what is live, at which the runtime begins one whatever we do. It keeps 2.2 times as much,
	// and would have to give back what is above the limit before all else.
	heapMost = 2.5
)

// heap reads how full the heap is. It is for one goroutine.
type heap struct {
	ours   bool // no percentage or limit of the user's is set
	paced  bool // there is a limit of ours in place of the percentage
	cycles uint64
	last   time.Time // when one more was seen
	calm   time.Time // nothing is due before
	seen   heapSeen

	samples []metrics.Sample
}

// heapSeen is in bytes.
type heapSeen struct {
	live   uint64 // behind the last collection
	goal   uint64 // at which the runtime means to be through with the next
	used   uint64
	mapped uint64 // what the process has of the system, but for what it has given back
	free   uint64 // of that, what is in no object
}

func newHeap(env config.Env) *heap {
	percent, _ := env("GOGC")
	limit, _ := env("GOMEMLIMIT")
	return &heap{ours: percent == "" && limit == "", samples: []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/goal:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}}
}

func (h *heap) read() (cycles uint64) {
	metrics.Read(h.samples)
	n := func(i int) uint64 { return h.samples[i].Value.Uint64() }
	h.seen = heapSeen{live: n(1), goal: n(2), used: n(3), free: n(4), mapped: n(5) - n(6)}
	return n(0)
}

// due says, once in a while, that a collection comes soon and takes long. Behind each, whoever began it,
// it sets what begins the next.
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

// limit is the one for a heap that needs one in place of the percentage; else there is none. Nor
// has one who has a lot to give back: the runtime does that by itself, as long as it has a percentage.
func (s heapSeen) limit() int64 {
	limit := s.mapped - s.free - s.used + uint64(heapMost*float64(s.live))
	if 2*s.live < heapLarge || s.mapped > limit {
		return math.MaxInt64
	}
	return int64(limit)
}

// comesSoon says so since the last has been so long ago.
func (s heapSeen) comesSoon(paced bool, since time.Duration) bool {
	goal, stale := s.goal, heapStaleTheir
	if paced {
		goal, stale = 2*s.live, heapStale
	}
	if goal < heapLarge || goal > 1<<60 { // collected in no time, or never
		return false
	}
	filled := goal > s.live && s.used > s.live && float64(s.used-s.live) >= heapFilled*float64(goal-s.live)
	return filled || since >= stale
}

// collect blocks until a collection is over.
func (t *Threads) collect() {
	t.askAll(true)
	defer t.askAll(false)
	runtime.GC()
}
