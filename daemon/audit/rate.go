package audit

import (
	"sync"
	"time"
)

// Limiter lets one log line a second through, and counts the others.
type Limiter struct {
	mu      sync.Mutex
	next    int64 // guarded by mu
	skipped int   // guarded by mu
}

// Do calls line with the number of lines that were skipped before, unless it has called a line
// within the last second. now is the time on the boot clock.
func (r *Limiter) Do(now int64, line func(skipped int)) {
	r.mu.Lock()
	if now < r.next {
		r.skipped++
		r.mu.Unlock()
		return
	}
	n := r.skipped
	r.next, r.skipped = now+int64(time.Second), 0
	r.mu.Unlock()
	line(n)
}
