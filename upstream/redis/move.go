package redis

import "github.com/locksidecar/locksidecar/upstream"

var _ upstream.Mover = (*Store)(nil)

// Identity is the instance id: all that another process needs to go on with the leases, which are
// known to the server by it and by the numbers of their tokens.
func (s *Store) Identity() string { return s.instance }

// Leave returns nothing: see Identity.
func (s *Store) Leave() ([]byte, error) { return nil, nil }

// Stay has nothing to do.
func (s *Store) Stay() {}

// Arrive has nothing to do: see Identity.
func (s *Store) Arrive([]byte) (begin func(), err error) { return func() {}, nil }
