package daemon

import (
	"sync"
	"time"
)

// rateLog lets one line a second through and counts the others.
type rateLog struct {
	mu      sync.Mutex
	next    int64 // guarded by mu
	skipped int   // guarded by mu
}

func (r *rateLog) say(now int64, line func(skipped int)) {
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
