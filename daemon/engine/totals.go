package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// Totals is what has happened and what there is, in numbers.
type Totals struct {
	Classes  []ClassTotals
	Stores   []StoreTotals
	Sessions int
	Oldest   int64         // nanoseconds for which the oldest hold has been held; 0 without any
	Cycles   uint64        // rings of waits found
	PutOff   int64         // nanoseconds that users who asked too fast have waited
	Faults   [codes]uint64 // sessions that were ended, by code
}

// ClassTotals is that of one class of a namespace's keys.
type ClassTotals struct {
	Prefix, Class string
	cache.Stats
	Refused [codes]uint64 // by protocol code: before the table was asked
}

// StoreTotals is that of one store.
type StoreTotals struct {
	Name           string
	Up             bool
	Connections    int           // -1 when not known
	Late           time.Duration // of the renewal that is due first
	Main, Renewals upstream.LaneStats
	cache.StoreStats
}

// codes is one more than the largest that requests are refused with, or sessions ended.
const codes = int(protocol.Overlong) + 1

// codeCounts counts by code.
type codeCounts [codes]atomic.Uint64

func (c *codeCounts) add(code protocol.Code) {
	if int(code) < len(c) {
		c[code].Add(1)
	}
}

func (c *codeCounts) load() (n [codes]uint64) {
	for i := range c {
		n[i] = c[i].Load()
	}
	return n
}

// class is what some keys are counted under.
type class struct {
	prefix, name string     // of the namespace; of the class in it, if it has one
	refused      codeCounts // acquires, before a table was asked
}

// classes are all that there have been, by the numbers that tables know them by.
type classes struct {
	mu  sync.Mutex
	all []*class // guarded by mu
}

func (c *classes) of(prefix, name string) (uint16, *class) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.all, func(x *class) bool { return x.prefix == prefix && x.name == name })
	if i < 0 {
		i = len(c.all)
		c.all = append(c.all, &class{prefix: prefix, name: name})
	}
	return uint16(i), c.all[i]
}

func (c *classes) list() []*class {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// Totals adds up what all shards have counted. It locks them one after the other, each for as
// long as an addition takes.
func (e *Engine) Totals() Totals {
	var t Totals
	var classes []cache.Stats
	var stores []cache.StoreStats
	now := e.clock()
	for i := range e.shards {
		sh := e.lock(i)
		classes, stores = sh.table.AddStats(classes, stores)
		if since := sh.table.OldestSince(); since != 0 {
			t.Oldest = max(t.Oldest, now-since, 1)
		}
		sh.mu.Unlock()
	}
	for i, of := range e.classes.list() {
		c := ClassTotals{Prefix: of.prefix, Class: of.name, Refused: of.refused.load()}
		if i < len(classes) {
			c.Stats = classes[i]
		}
		t.Classes = append(t.Classes, c)
	}
	for _, u := range e.stores() {
		s := StoreTotals{Name: u.Name(), Up: u.Down() == nil, Late: u.schedule.Late(now), Main: u.main.Stats(), Renewals: u.renewals.Stats()}
		if u.core.ID < len(stores) {
			s.StoreStats = stores[u.core.ID]
		}
		kept := u.sessionStats()
		s.Add(&kept)
		t.Stores = append(t.Stores, s)
	}
	e.mu.Lock()
	t.Sessions = len(e.sessions)
	e.mu.Unlock()
	t.Cycles = e.cycles.count.Load()
	t.Faults = e.faults.load()
	return t
}

// ResultLabels are how acquires end, as labels.
var ResultLabels = map[cache.Outcome]string{
	cache.Outcome(cache.CodeOK): "granted", cache.OutReentered: "reentered", cache.OutGone: "gone",
	cache.Outcome(protocol.Denied): "denied", cache.Outcome(protocol.Unsupported): "unsupported",
}

func init() {
	for _, c := range []protocol.Code{protocol.Busy, protocol.Timeout, protocol.Canceled, protocol.Upgrade, protocol.Unavailable,
		protocol.Limit, protocol.Invalid, protocol.Draining} {
		ResultLabels[cache.Outcome(c)] = c.String()
	}
}

// NamespaceLabel is how a namespace is called. No two have the same name.
func NamespaceLabel(prefix string) string {
	switch prefix {
	case "":
		return "default"
	case "default":
		return `"default"`
	}
	return prefix
}

// CauseLabels are the labels of what ends holds.
var CauseLabels = map[cache.Cause]string{cache.CauseRelease: "release", cache.CauseSession: "session",
	cache.CauseGivenBack: "given_back", cache.CauseFixedEnd: "fixed_end"}
