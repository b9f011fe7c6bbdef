package embedded

// Semaphores returns the number of semaphores in the table.
func (s *Store) Semaphores() (n int) {
	for i := range s.shards {
		d := &s.shards[i]
		d.mu.Lock()
		n += len(d.permits)
		d.mu.Unlock()
	}
	return n
}
