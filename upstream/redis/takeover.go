package redis

// Identity returns the instance id. With it and the numbers of their tokens, another process
// continues with the leases.
func (s *Store) Identity() string { return s.instance }

// Leave returns the state of the fence clock.
func (s *Store) Leave() ([]byte, error) { return s.fences.Leave(), nil }

// Stay has nothing to do.
func (s *Store) Stay() {}

// Arrive adopts the state of the fence clock.
func (s *Store) Arrive(b []byte) (begin func(), err error) {
	return func() {}, s.fences.Arrive(b)
}
