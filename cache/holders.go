package cache

// HoldersOf returns up to limit valid holds of a key: of its semaphore if permit is true, else of its
// lock. all is the number of valid holds and waiters the number of this host's waiters for the key.
// HoldersOf changes nothing.
func (t *Table) HoldersOf(key string, permit bool, limit int, now int64) (held []Held, all, waiters int) {
	of := t.leases[key]
	if permit {
		of = t.sems[key]
	}
	if of == nil {
		return nil, 0, 0
	}
	ls := []*Lease{of}
	if of.sem != nil {
		ls = of.sem.permits
	}
	for _, l := range ls {
		for h := l.holds; h != nil; h = h.next {
			if s := t.shown(h); s.Until > now {
				if all++; len(held) < limit {
					held = append(held, s)
				}
			}
		}
	}
	return held, all, int(of.nWaits)
}
