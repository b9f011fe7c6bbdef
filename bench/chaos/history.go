package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// What workers note, one line of JSON each.
const (
	evUp    = "up"    // the worker runs
	evAsk   = "ask"   // an acquire is about to be sent
	evGot   = "got"   // and has been answered; R is "ok", or why not
	evState = "state" // valid until U, by all that was stated when T was read or a moment later
	evLost  = "lost"  // noticed as lost, or run out
	evGive  = "give"  // a release is about to be sent
	evGave  = "gave"  // and has been answered
	evLower = "lower" // a downgrade is about to be sent
	evLow   = "low"   // and has been answered
	evBye   = "bye"   // all waits have ended
)

// Event is one line. Times are nanoseconds of CLOCK_BOOTTIME.
type Event struct {
	E    string `json:"e"`
	T    int64  `json:"t"`
	W    int    `json:"w"`              // the worker
	N    int64  `json:"n,omitempty"`    // which of its acquires, from 1
	K    string `json:"k,omitempty"`    // key
	O    int    `json:"o,omitempty"`    // owner in the worker
	M    int    `json:"m,omitempty"`    // 1 is shared, 2 a permit
	P    int    `json:"p,omitempty"`    // how many permits the semaphore has
	G    int64  `json:"g,omitempty"`    // asked for together: the first one's acquire
	Wait int64  `json:"wait,omitempty"` // ms; -1 without bound
	Of   int64  `json:"of,omitempty"`   // the acquire that this one re-enters
	R    string `json:"r,omitempty"`    // result
	F    uint64 `json:"f,omitempty"`    // fence
	U    int64  `json:"u,omitempty"`    // valid until
	D    int64  `json:"d,omitempty"`    // the grant's own deadline, from workers in Go
	C    uint64 `json:"c,omitempty"`    // and its count
}

const forever = 1<<63 - 1

// op is one acquire with all that came of it. Times of what did not happen are 0.
type op struct {
	w, o    int
	host    int
	n, of   int64
	group   int64  // of those that were asked for together, or 0
	key     string // of a semaphore, which is nothing to the lock of the same key, another one
	name    string
	shared  bool
	permits int   // how many permits there are; 0 of a lock
	wait    int64 // ms

	asked, answered int64
	result          string // "" when there was no answer
	fence, count    uint64
	deadline        int64

	seen  int64 // the last moment at which it was valid for certain
	until int64 // the furthest that was stated
	lost  int64 // when the worker noticed
	why   string

	gave, given int64 // release sent, answered
	gaveResult  string
	lower, low  int64 // downgrade sent, answered
	lowResult   string
	lowFence    uint64
	killed      int64 // its process was killed, or 0
}

func (p *op) granted() bool { return p.result == "ok" }

// held says that a fresh grant was valid when it was read.
func (p *op) held() bool { return p.granted() && p.of == 0 && p.until > p.answered }

// lowered says that the hold has become a shared one.
func (p *op) lowered() bool { return p.low > 0 && p.lowResult == "ok" }

// released says that a release went well.
func (p *op) released() bool { return p.gave > 0 && p.given > 0 && p.gaveResult == "ok" }

// forgivesShared returns a function that forgives two acquires, each named as in 1/781 by its
// worker and number, the same fence: the store may have forgotten the one before it granted the
// other, which had not been requested behind it.
func (h *History) forgivesShared() func(by, later string) bool {
	named := map[string]*op{}
	for _, p := range h.ops() {
		named[fmt.Sprintf("%d/%d", p.w, p.n)] = p
	}
	return func(by, later string) bool {
		a, b := named[by], named[later]
		return a != nil && b != nil && b.asked < a.answered && h.forgives(a, b)
	}
}

// span is a time in which something happened.
type span struct{ from, to int64 }

// forget is a time at which the store of the keys that begin with a prefix may have forgotten them.
type forget struct {
	keys string
	span
}

func (f *forget) of(p *op) bool { return strings.HasPrefix(p.name, f.keys) }

// History is what a cell's clients were told, and what was done meanwhile.
type History struct {
	Events []Event
	Hosts  []int         // of each worker, the daemon it is at
	Killed map[int]int64 // when a worker was killed
	Frozen map[int][]span
	// Cut are the moments at which a worker's connections were about to be ended from between it
	// and its daemon, which no Unix socket does by itself. The daemon takes that for the client's
	// end before the client has heard of it.
	Cut map[int][]int64
	// Forgets are the times at which the store may forget what it had confirmed, as far as
	// it is promised to keep it: whoever was granted before and after may overlap.
	Forgets []forget
}

// ops puts the acquires together, by when they were asked.
func (h *History) ops() []*op {
	type id struct {
		w int
		n int64
	}
	byID := map[id]*op{}
	var all []*op
	for _, e := range h.Events {
		if e.E == evAsk {
			p := &op{w: e.W, o: e.O, host: h.Hosts[e.W], n: e.N, of: e.Of, group: e.G, key: e.K, name: e.K,
				shared: e.M == 1, permits: e.P, wait: e.Wait,
				asked: e.T, killed: h.Killed[e.W]}
			if p.permits > 0 {
				p.key = "semaphore " + e.K
			}
			byID[id{e.W, e.N}] = p
			all = append(all, p)
			continue
		}
		p := byID[id{e.W, e.N}]
		if p == nil {
			continue
		}
		switch e.E {
		case evGot:
			p.answered, p.result, p.fence, p.deadline, p.count = e.T, e.R, e.F, e.D, e.C
			p.state(e.T, e.U)
		case evState:
			p.state(e.T, e.U)
		case evLost:
			p.lost, p.why = e.T, e.R
		case evGive:
			p.gave = e.T
		case evGave:
			p.given, p.gaveResult = e.T, e.R
		case evLower:
			p.lower = e.T
		case evLow:
			p.low, p.lowResult, p.lowFence = e.T, e.R, e.F
		}
	}
	slices.SortStableFunc(all, func(a, b *op) int { return cmp.Compare(a.asked, b.asked) })
	for _, p := range all {
		o := byID[id{p.w, p.of}]
		if o != nil && p.granted() && p.fence != o.fence && (o.lost > 0 || o.until < p.answered) {
			p.of = 0 // what it was to re-enter had run out: it was taken anew
		}
	}
	return all
}

func (p *op) state(t, until int64) {
	if until > t {
		p.seen = max(p.seen, t)
		p.until = max(p.until, until)
	}
}

// believed is for how long a client certainly believed that it held: from when it read
// the grant until it sent the release, noticed the loss, was killed, or what was stated
// was over, whichever came first. A loss was read at some time after the last look that
// found the hold valid; who stood still meanwhile believed until it went on.
func (h *History) believed(p *op) span {
	end := p.until
	if p.gave > 0 {
		end = min(end, p.gave)
	}
	if p.killed > 0 {
		end = min(end, p.killed)
	}
	if cut := h.cut(p); cut > 0 {
		end = min(end, cut)
	}
	if p.lost > 0 {
		read := p.seen
		for _, f := range h.Frozen[p.w] {
			if f.from > p.seen && f.from < p.lost {
				read = max(read, min(f.to, p.lost))
			}
		}
		end = min(end, read)
	}
	return span{p.answered, max(end, p.answered)}
}

// cut is when p's connection was first ended from between, if it is lost by that; else 0.
func (h *History) cut(p *op) int64 {
	for _, t := range h.Cut[p.w] {
		if t > p.asked && (t > p.answered || p.lost > 0) {
			return t
		}
	}
	return 0
}

// cutOff says that p's release may have been answered by the end of its connection alone,
// which is release too.
func (h *History) cutOff(p *op) bool {
	return slices.ContainsFunc(h.Cut[p.w], func(t int64) bool { return t > p.asked && t < p.given })
}

// forgives says that the store may have forgotten a before it granted b.
func (h *History) forgives(a, b *op) bool {
	return slices.ContainsFunc(h.Forgets, func(f forget) bool {
		return f.of(a) && a.asked <= f.to && b.answered >= f.from
	})
}
