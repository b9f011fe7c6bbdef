package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/locksidecar/locksidecar/cache/heap"
)

// Times of a world are nanoseconds.
const (
	us  = int64(time.Microsecond)
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

// World is one run: hosts, clients and stores in virtual time. Everything in it follows from the
// seed. It is for one goroutine.
type World struct {
	seed     uint64
	p        Profile
	load     load // what clients do instead of acting at random; nil in runs of seeds
	rng      *rand.Rand
	now      int64 // true time, which no clock of this world shows
	heap     eventHeap
	seq      uint64
	events   int
	begun    int // fresh holds so far
	plant    int // the event at which to fail, for trying out what a failure does; 0 for none
	hash     uint64
	chaining bool // only the chain of handoffs uses the first key now: see World.chain
	calm     bool // the run is ending: there are no more faults, and clients acquire nothing new

	hosts      []*host
	clients    []*client
	foreign    []*foreigner
	keys       []*key
	sems       []*key
	everything []*key // keys and sems
	byName     map[string]*key
	stores     []*simStore // the stores that hosts share, and one that means each host's own
	nStores    int
	instances  uint32           // how many instances of daemons there have been at stores
	owner      map[uint32]*link // by instance
	conf       *conf            // the configuration that the operator has written last
	// stepDice draws the steps of reloads; nil if each reload is a single step.
	stepDice func(n int) int
	stages   []*simStore // the store after each rollout of a move: see newMove
	kept     []*kept     // the keeps that may not be over
	counts   Counts
	trace    *trace
	failure  *Failure
}

// Failure is a check that failed.
type Failure struct {
	Seed  uint64
	Check string
	Key   string // "" when no single key is concerned
	At    time.Duration
	Text  string
}

func (f *Failure) Error() string {
	return fmt.Sprintf("seed %d: %s: %s (key %q, at %v)", f.Seed, f.Check, f.Text, f.Key, f.At)
}

// Report is the result of a run.
type Report struct {
	Seed    uint64
	Hash    uint64 // of the trace: the same for the same seed, everywhere
	Events  int
	Time    time.Duration // simulated
	Profile Profile
	Counts  Counts
	Failure *Failure // nil when every check held
	Trace   []string // the last events of the key concerned, if asked for
}

// Run simulates one seed for a time, and then until nothing is left to do. With keep > 0 the last
// events of each key are kept for the report.
func Run(seed uint64, length time.Duration, keep int) *Report {
	return newWorld(seed, length, keep).report(length)
}

func (w *World) report(length time.Duration) *Report {
	w.play(int64(length))
	r := &Report{Seed: w.seed, Hash: w.hash, Events: w.events,
		Time: time.Duration(w.now - epoch), Profile: w.p,
		Counts: w.counts, Failure: w.failure}
	if w.failure != nil && w.trace != nil {
		r.Trace = w.trace.of(w.failure.Key)
	}
	return r
}

// epoch is the true time at which a run begins. It is not 0, so that a missing time shows.
const epoch = 1_000_000 * sec

func newWorld(seed uint64, length time.Duration, keep int) *World {
	w := emptyWorld(seed)
	if keep > 0 {
		w.trace = &trace{keep: keep}
	}
	w.p = w.newProfile(int64(length))
	if w.p.Steps {
		w.stepDice = extraDice(seed, 0x737465707314)
	}
	w.build()
	return w
}

func emptyWorld(seed uint64) *World {
	return &World{seed: seed, now: epoch, hash: 14695981039346656037, byName: make(map[string]*key),
		owner: make(map[uint32]*link),
		rng:   rand.New(rand.NewPCG(seed, 0x6c6f636b73696465))}
}

// play runs the world and its end, and checks that nothing is left.
func (w *World) play(length int64) {
	defer func() {
		if p := recover(); p != nil {
			w.fail("panic", "", "%v\n%s", p, debug.Stack())
		}
	}()
	defer func() { // ends the coroutines of reloads, and of the driver of two stores
		for _, h := range w.hosts {
			h.cutSteps()
			for _, l := range h.links {
				l.close()
			}
		}
	}()
	end := epoch + length
	w.runUntil(end)
	if w.failure == nil {
		w.finish()
	}
}

func (w *World) runUntil(end int64) {
	for w.failure == nil && w.heap.Len() > 0 && w.heap.At(1).at <= end {
		e := w.heap.Remove(1)
		w.now = e.at
		w.events++
		e.do()
		if w.plant > 0 && w.events >= w.plant {
			w.fail("planted", "", "at event %d", w.events)
		}
	}
	if w.failure == nil {
		w.now = end
	}
}

// at schedules an event at a true time.
func (w *World) at(t int64, do func()) {
	w.seq++
	w.heap.Push(event{max(t, w.now), w.seq, do})
}

func (w *World) after(d int64, do func()) { w.at(w.now+d, do) }

// fail records the first check that failed, and ends the run.
func (w *World) fail(check, key, format string, a ...any) {
	if w.failure != nil {
		return
	}
	w.failure = &Failure{Seed: w.seed, Check: check, Key: key, At: time.Duration(w.now - epoch),
		Text: fmt.Sprintf(format, a...)}
	if w.trace != nil {
		w.trace.add(w.now, key, "FAILED "+check+": "+w.failure.Text)
		w.describe(key)
	}
}

// note mixes an event into the trace's hash.
func (w *World) note(what kind, k *key, a, b uint64) {
	h := w.hash
	if k != nil {
		h ^= k.no << 32
	}
	for _, v := range [...]uint64{uint64(w.now), uint64(what), a, b} {
		h = (h ^ v) * 1099511628211
		h ^= h >> 29
	}
	w.hash = h
}

// say adds a line of text to the trace, which is printed after a failure. It changes nothing else.
func (w *World) say(k *key, format string, a ...any) {
	if w.trace == nil {
		return
	}
	name := ""
	if k != nil {
		name = k.name
	}
	w.trace.add(w.now, name, fmt.Sprintf(format, a...))
}

// The dice below are integers, because floats may differ between machines.

// chance returns true with the given permille.
func (w *World) chance(permille int) bool {
	return permille > 0 && int(w.rng.Uint64N(1000)) < permille
}

// between draws a number from lo up to, but not including, hi.
func (w *World) between(lo, hi int64) int64 {
	if hi <= lo {
		return lo
	}
	return lo + int64(w.rng.Uint64N(uint64(hi-lo)))
}

func (w *World) pick(n int) int { return int(w.rng.Uint64N(uint64(n))) }

// skewed draws a number around mean. Most are smaller, and a few are much larger.
func (w *World) skewed(mean int64) int64 {
	d := w.between(0, 3*mean/2)
	for range 3 {
		if !w.chance(200) {
			break
		}
		d += w.between(0, 2*mean)
	}
	return d
}

// event happens at a time. seq keeps the order of events that happen at the same time.
type event struct {
	at  int64
	seq uint64
	do  func()
}

type eventHeap = heap.Heap[event, eventOrder]

type eventOrder struct{}

func (eventOrder) Less(a, b event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }
func (eventOrder) Place(event, int)     {}
