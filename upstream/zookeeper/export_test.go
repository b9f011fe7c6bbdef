package zookeeper

import "time"

// WithIdle changes when and how fast idle parents are removed.
func WithIdle(after time.Duration, most int, pause time.Duration) Option {
	return func(s *Store) { s.idle.after, s.idle.most, s.idle.pause = after, most, pause }
}

// IdleCost is what an idle parent takes beside its path.
const IdleCost = idleCost

// Idle is how many idle parents are remembered, and what that takes.
func (s *Store) Idle() (n, bytes int) {
	s.idle.mu.Lock()
	defer s.idle.mu.Unlock()
	return s.idle.queue.Len(), s.idle.bytes
}
