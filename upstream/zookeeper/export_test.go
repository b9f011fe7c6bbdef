package zookeeper

import "time"

// WithIdle changes when and how fast idle parents are removed.
func WithIdle(after time.Duration, limit int, pause time.Duration) func(*Config) {
	return func(c *Config) { c.idle = idleLimits{after, limit, pause} }
}

// IdleCost is the memory of an idle parent, without its path.
const IdleCost = idleCost

// Idle returns how many idle parents are remembered, and their memory in bytes.
func (s *Store) Idle() (n, bytes int) {
	s.idle.mu.Lock()
	defer s.idle.mu.Unlock()
	return s.idle.queue.Len(), s.idle.bytes
}
