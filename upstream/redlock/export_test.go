package redlock

import "time"

// WithGrace makes calls wait at least d for the nodes that are not needed.
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

// WithSeed makes what the store does at random repeatable.
func WithSeed(seed uint64) func(*Config) { return func(c *Config) { c.seed = seed } }
