package redis

import "github.com/locksidecar/locksidecar/upstream"

var _ upstream.Mover = (*Store)(nil)

// Identity is the instance id: another process goes on with the leases by it and by the numbers of their
// tokens.
func (s *Store) Identity() string { return s.instance }

// Leave returns what fence bases have to be above.
func (s *Store) Leave() ([]byte, error) { return s.fences.Leave(), nil }

// Stay has nothing to do.
func (s *Store) Stay() {}

// Arrive takes over what fence bases have to be above.
func (s *Store) Arrive(b []byte) (begin func(), err error) {
	return func() {}, s.fences.Arrive(b)
}
