package driverkit

import (
	"maps"
	"sync"
	"time"
)

// stuckTime is how long a Stuck remembers a row.
const stuckTime = 10 * time.Second

// Stuck remembers the rows that another client keeps locked in a transaction at the server. They
// must not delay the other ops of a batch. The zero value is ready to use.
type Stuck struct {
	mu    sync.Mutex
	until map[string]time.Time // by the row's name; guarded by mu
}

// Put remembers that the row name is locked.
func (s *Stuck) Put(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = map[string]time.Time{}
	}
	now := time.Now()
	maps.DeleteFunc(s.until, func(_ string, end time.Time) bool { return now.After(end) })
	s.until[name] = now.Add(stuckTime)
}

// Has reports whether the row name was found locked not long ago.
func (s *Stuck) Has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.until[name])
}
