package redlock

import "time"

// WithGrace makes calls wait at least d for the nodes outside the quorum.
func WithGrace(d time.Duration) func(*Config) { return func(c *Config) { c.grace = d } }

// Left returns the number of leases in the store, and of pending releases at its nodes.
func (s *Store) Left() (leases, pending int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		pending += len(n.pendingReleases)
	}
	return len(s.leases), pending
}

// WithSeed makes the random choices of the store repeatable.
func WithSeed(seed uint64) func(*Config) { return func(c *Config) { c.seed = seed } }
