package zookeeper

import (
	"sync"
	"time"
)

// maxRecent limits the paths that a recent remembers.
const maxRecent = 8192

// recent remembers for a while which paths had a property. It may forget them early.
type recent struct {
	keep time.Duration
	mu   sync.Mutex
	at   map[string]time.Time // guarded by mu
}

func newRecent(keep time.Duration) *recent {
	return &recent{keep: keep, at: map[string]time.Time{}}
}

func (r *recent) add(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.at) >= maxRecent {
		clear(r.at)
	}
	r.at[path] = time.Now()
}

func (r *recent) has(path string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.at[path]
	return ok && time.Since(at) < r.keep
}

func (r *recent) remove(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.at, path)
}
