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

// Totals has the counters and the present numbers of an engine.
type Totals struct {
	Classes   []ClassTotals
	Stores    []StoreTotals
	Sessions  int
	Oldest    int64         // nanoseconds for which the oldest hold has been held; 0 without any
	Cycles    uint64        // cycles of waiting owners that were found
	Throttled int64         // nanoseconds that requests over a rate limit were delayed
	Faults    [codes]uint64 // sessions that were ended, by code
}

// ClassTotals has the totals of one class of a namespace's keys.
type ClassTotals struct {
	Prefix, Class string
	cache.Stats
	Refused [codes]uint64 // by protocol code: before the table was asked
}

// StoreTotals has the totals of one store.
type StoreTotals struct {
	Name           string
	Up             bool
	Connections    int           // -1 when not known
	Late           time.Duration // how late the most urgent renewal is
	TTL            time.Duration // the shortest of its namespaces; 0 if it has none
	Main, Renewals upstream.LaneStats
	cache.StoreStats
}

// codes is one more than the largest code with which requests are refused or sessions ended.
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

// class is a set of keys that are counted together.
type class struct {
	prefix, name string     // of the namespace; of the class in it, if it has one
	refused      codeCounts // acquires, before a table was asked
}

// classes has all classes since the start, by their numbers in the tables.
type classes struct {
	mu  sync.Mutex
	all []*class // guarded by mu
}

func (c *classes) of(prefix, name string) (uint16, *class) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.all, func(x *class) bool {
		return x.prefix == prefix && x.name == name
	})
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

// Totals adds up the counters of all shards. It locks the shards one after the other, each only for
// the addition.
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
	for _, sl := range e.Stores() {
		s := StoreTotals{Name: sl.Name(), Up: sl.Down() == nil, Late: sl.schedule.Late(now),
			Main: sl.main.Stats(), Renewals: sl.renewals.Stats()}
		s.TTL = e.shortestTTL(sl)
		if sl.core.ID < len(stores) {
			s.StoreStats = stores[sl.core.ID]
		}
		kept := sl.sessionStats()
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

// shortestTTL returns the shortest TTL of a store's leases whose acquires state none, or 0 if no
// namespace has the store.
func (e *Engine) shortestTTL(sl *StoreLane) (ttl time.Duration) {
	for _, rt := range e.routes.Load().routes {
		if rt.StoreLane == sl && (ttl == 0 || rt.TTL < ttl) {
			ttl = rt.TTL
		}
	}
	if sl.info.Session > 0 {
		ttl = min(ttl, sl.info.Session)
	}
	return ttl
}

// ResultLabels are the labels of the outcomes of acquires.
var ResultLabels = map[cache.Outcome]string{
	cache.Outcome(protocol.OK): "granted", cache.OutReentered: "reentered", cache.OutGone: "gone",
	cache.Outcome(protocol.Denied): "denied", cache.Outcome(protocol.Unsupported): "unsupported",
}

func init() {
	for _, c := range []protocol.Code{protocol.Busy, protocol.Timeout, protocol.Canceled,
		protocol.Upgrade, protocol.Unavailable,
		protocol.Limit, protocol.Invalid, protocol.Draining} {
		ResultLabels[cache.Outcome(c)] = c.String()
	}
}

// NamespaceLabel returns the label of the namespace with a prefix. Labels are unique.
func NamespaceLabel(prefix string) string {
	switch prefix {
	case "":
		return "default"
	case "default":
		return `"default"`
	}
	return prefix
}

// CauseLabels are the labels of the causes that end holds.
var CauseLabels = map[cache.Cause]string{
	cache.CauseRelease: "release", cache.CauseSession: "session",
	cache.CauseGivenBack: "given_back", cache.CauseFixedEnd: "fixed_end",
}
