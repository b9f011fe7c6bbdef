package cache

import "slices"

// HoldersOf returns up to limit valid holds of a key: of its semaphore if permit is true, else of
// its lock. all is the number of valid holds and waiters the number of this host's waiters for the
// key. HoldersOf changes nothing.
func (t *Table) HoldersOf(key string, permit bool, limit int, now int64) (
	held []Held, all, waiters int) {
	of := t.head(key, permit)
	if of == nil {
		return nil, 0, 0
	}
	for _, l := range of.claims() {
		for h := range l.holds.all() {
			if s := t.describeHold(h); s.Until > now {
				if all++; len(held) < limit {
					held = append(held, s)
				}
			}
		}
	}
	return held, all, int(of.queue().n)
}

// HeldFor returns for each token how long ago the store granted the lease with that token, in
// nanoseconds. It is 0 for a token without a valid lease. The leases are permits of the key's
// semaphore if permit is true, else the key's lock. HeldFor changes nothing.
func (t *Table) HeldFor(s *StoreTraits, key string, permit bool, tokens []uint64,
	now int64) []int64 {
	held, missing := make([]int64, len(tokens)), len(tokens)
	for l := range t.named(key) {
		if l.isLock() == permit || l.st.StoreTraits != s || l.state != stateHeld ||
			now >= t.deadline(l) {
			continue
		}
		if i := slices.Index(tokens, l.token); i >= 0 {
			held[i] = max(1, now-l.held.since)
			if missing--; missing == 0 {
				break
			}
		}
	}
	return held
}
