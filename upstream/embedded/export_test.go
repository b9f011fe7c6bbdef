package embedded

// Semaphores is how many the table has an entry of.
func (s *Store) Semaphores() (n int) {
	for i := range s.shards {
		d := &s.shards[i]
		d.mu.Lock()
		n += len(d.permits)
		d.mu.Unlock()
	}
	return n
}
