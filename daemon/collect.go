package daemon

import (
	"runtime/debug"
	"sync"
	"time"
)

// collector keeps the garbage collector off while a takeover has clients wait: it would look at all
// locks, of which none is garbage, while they are written or read.
var collector struct {
	mu      sync.Mutex
	holds   int // guarded by mu, as is
	percent int
}

// collectLater is for how long the collector stays off when everybody goes on: what it has to do then
// is spread over what clients ask for.
const collectLater = time.Second

func holdCollector() {
	c := &collector
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds++; c.holds == 1 {
		c.percent = debug.SetGCPercent(-1)
	}
}

func letCollector() {
	c := &collector
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds--; c.holds == 0 {
		debug.SetGCPercent(c.percent)
	}
}
