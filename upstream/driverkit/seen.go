package driverkit

import "sync"

// Seen remembers the properties of the server that was last seen. The zero value is ready to use.
type Seen[T comparable] struct {
	mu   sync.Mutex
	last *T // nil until a server has been seen; guarded by mu
}

// Put remembers v. It calls report, which must not use s, unless the last server had the same
// properties.
func (s *Seen[T]) Put(v *T, report func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && *s.last == *v {
		return
	}
	s.last = v
	report()
}

// Is reports whether a server has been seen, and is returns true for the last one.
func (s *Seen[T]) Is(is func(*T) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last != nil && is(s.last)
}
