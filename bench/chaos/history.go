package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The events that workers print, as one line of JSON each.
const (
	evUp    = "up"    // the worker runs
	evAsk   = "ask"   // an acquire is about to be sent
	evGot   = "got"   // the acquire was answered; R is "ok", or the reason of the refusal
	evState = "state" // valid until U, by all that had been stated when T was read, or a moment later
	evLost  = "lost"  // the worker has noticed that the hold was lost, or has run out
	evGive  = "give"  // a release is about to be sent
	evGave  = "gave"  // the release was answered
	evLower = "lower" // a downgrade is about to be sent
	evLow   = "low"   // the downgrade was answered
	evBye   = "bye"   // all waits have ended
)

// Event is one line. Times are in nanoseconds of CLOCK_BOOTTIME.
type Event struct {
	E    string `json:"e"`
	T    int64  `json:"t"`
	W    int    `json:"w"`              // the worker
	N    int64  `json:"n,omitempty"`    // the number of the acquire in this worker, from 1
	K    string `json:"k,omitempty"`    // key
	O    int    `json:"o,omitempty"`    // the number of the owner in the worker
	M    int    `json:"m,omitempty"`    // 1 for shared, 2 for a permit
	P    int    `json:"p,omitempty"`    // the number of permits of the semaphore
	G    int64  `json:"g,omitempty"`    // for keys acquired together: the first one's acquire
	Wait int64  `json:"wait,omitempty"` // milliseconds; -1 without limit
	Of   int64  `json:"of,omitempty"`   // the acquire that this one re-enters
	R    string `json:"r,omitempty"`    // result
	F    uint64 `json:"f,omitempty"`    // fence
	U    int64  `json:"u,omitempty"`    // valid until
	D    int64  `json:"d,omitempty"`    // the grant's own deadline, from workers in Go
	C    uint64 `json:"c,omitempty"`    // the grant's own count
}

const forever = 1<<63 - 1

// op is one acquire with everything that followed from it. Times of events that did not happen are
// 0.
type op struct {
	w, o    int
	host    int
	n, of   int64
	group   int64  // the first acquire of several keys that were acquired together, or 0
	key     string // a semaphore has another key here than the lock of the same name
	name    string
	shared  bool
	permits int   // number of permits of the semaphore; 0 for a lock
	wait    int64 // milliseconds

	asked, answered int64
	result          string // "" if there was no answer
	fence, count    uint64
	deadline        int64

	seen  int64 // the last moment at which it was certainly valid
	until int64 // the latest validity that was stated
	lost  int64 // when the worker noticed the loss
	why   string

	gave, given int64 // when the release was sent, and when it was answered
	gaveResult  string
	lower, low  int64 // when the downgrade was sent, and when it was answered
	lowResult   string
	lowFence    uint64
	killed      int64 // when the process was killed, or 0
}

func (p *op) granted() bool { return p.result == "ok" }

// held reports whether p is a fresh grant that was valid when it was read.
func (p *op) held() bool { return p.granted() && p.of == 0 && p.until > p.answered }

// lowered reports whether the hold has become a shared one.
func (p *op) lowered() bool { return p.low > 0 && p.lowResult == "ok" }

// released reports whether a release succeeded.
func (p *op) released() bool { return p.gave > 0 && p.given > 0 && p.gaveResult == "ok" }

// forgivesShared returns a function that reports whether two acquires may have the same fence. That
// is allowed if the store may have forgotten the first one before it granted the second, and the
// second was requested before the first was granted. Each acquire is named by its worker and
// number, as in 1/781.
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

// forget is a time in which the store may have forgotten the keys that begin with a prefix.
type forget struct {
	keys string
	span
}

func (f *forget) of(p *op) bool { return strings.HasPrefix(p.name, f.keys) }

// History has all that a cell's clients were told, and what was done meanwhile.
type History struct {
	Events []Event
	Hosts  []int         // the daemon of each worker
	Killed map[int]int64 // when a worker was killed
	Frozen map[int][]span
	// Cut has, by worker, the moments at which a link was about to end the worker's connections. A
	// Unix socket never does that by itself. The daemon notices the end, and takes it for the client's
	// end, before the client notices anything.
	Cut map[int][]int64
	// Forgets are the times in which the store may forget locks that it had confirmed, within the
	// limits of its promises. A holder from before and a holder from after may overlap.
	Forgets []forget
}

// ops combines the events into acquires, in the order of their requests.
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
			p.of = 0 // the hold that it was to re-enter had run out, so this is a new hold
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

// believed returns for how long a client certainly believed that it held the lock. That begins when
// the client reads the grant. It ends when the client sends the release, notices the loss or is
// killed, or when the stated validity ends, whichever is first. A loss was read at some time after
// the last check that found the hold valid. A process that was stopped meanwhile believed until it
// was continued.
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

// cut returns when p's connection was first cut by a link, if p was lost by that, and otherwise 0.
func (h *History) cut(p *op) int64 {
	for _, t := range h.Cut[p.w] {
		if t > p.asked && (t > p.answered || p.lost > 0) {
			return t
		}
	}
	return 0
}

// cutOff reports whether the only answer to p's release may have been the end of the connection,
// which also releases p.
func (h *History) cutOff(p *op) bool {
	return slices.ContainsFunc(h.Cut[p.w], func(t int64) bool { return t > p.asked && t < p.given })
}

// forgives reports whether the store may have forgotten a before it granted b.
func (h *History) forgives(a, b *op) bool {
	return slices.ContainsFunc(h.Forgets, func(f forget) bool {
		return f.of(a) && a.asked <= f.to && b.answered >= f.from
	})
}
