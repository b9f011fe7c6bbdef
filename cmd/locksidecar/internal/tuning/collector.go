package tuning

import (
	"math"
	"runtime/debug"
	"sync"
	"time"
)

// collector sets when the garbage collector of this process runs. A takeover turns the collector
// off while clients wait: it would scan all locks, none of which is garbage, while they are
// written or read. There is one, because the process has one collector.
var collector struct {
	mu      sync.Mutex
	holds   int // guarded by mu, as are the fields below
	percent int
	limit   int64 // the limit that setCollector has set; 0 if the user has set it
}

// collectLater is how long the collector stays off after clients are served again. Its work would
// delay their requests.
const collectLater = time.Second

// setCollector makes a collection begin when the heap has grown by percent of the live bytes, or
// when the process has limit bytes. If a takeover has turned the collector off, that applies once
// it is on again.
func setCollector(percent int, limit int64) {
	c := &collector
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.percent, c.limit = percent, limit; c.holds == 0 {
		apply(percent, limit)
	}
}

// apply sets both values. In between, at least one of them is in force.
func apply(percent int, limit int64) {
	if percent < 0 {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	} else {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}

// holdCollector turns the collector off. Calls nest.
func holdCollector() {
	c := &collector
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds++; c.holds > 1 {
		return
	}
	c.percent = debug.SetGCPercent(-1)
	if c.limit != 0 {
		debug.SetMemoryLimit(math.MaxInt64)
	}
}

// letCollector ends holdCollector.
func letCollector() {
	c := &collector
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds--; c.holds > 0 {
		return
	}
	if c.limit == 0 { // a limit of the user stays
		debug.SetGCPercent(c.percent)
	} else {
		apply(c.percent, c.limit)
	}
}
