package daemon

import (
	"math"
	"runtime/debug"
	"sync"
	"time"
)

// collector keeps the garbage collector off while a takeover has clients wait: it would look at all
// locks, of which none is garbage, while they are written or read.
var collector struct {
	mu      sync.Mutex
	holds   int // guarded by mu, as are
	percent int
	limit   int64 // of SetCollector's; 0 when the limit is not ours
}

// collectLater is for how long the collector stays off when everybody goes on: what it has to do then
// is spread over what clients ask for.
const collectLater = time.Second

// SetCollector has a collection begin when the heap has grown by percent of what was live, and when the
// process has limit bytes (debug.SetGCPercent and debug.SetMemoryLimit), unless a takeover is under way:
// then behind it.
func SetCollector(percent int, limit int64) {
	c := &collector
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.percent, c.limit = percent, limit; c.holds == 0 {
		setCollector(percent, limit)
	}
}

// setCollector sets both, with either in force in between.
func setCollector(percent int, limit int64) {
	if percent < 0 {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	} else {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}

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

func letCollector() {
	c := &collector
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds--; c.holds > 0 {
		return
	}
	if c.limit == 0 { // the user's stays
		debug.SetGCPercent(c.percent)
	} else {
		setCollector(c.percent, c.limit)
	}
}
