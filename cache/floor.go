package cache

// Fence floors: the bases that a new base has to be above, because this host has seen them. A table knows one
// floor per store. When keys move to another store, the floor moves with them, so that the fences of one host
// rise over a reload even if the new store's counter and clock are behind.

// maxCarried is the highest floor that a store takes over from another one. It is above every base that the
// largest fence_epoch leads to. There are 2^51 bases above it. So a wrong base of one store, such as a damaged
// counter, cannot use up the bases of another.
const maxCarried = 3 << 51

// Raises reports whether bases can be raised: a new one is above Op.Floor. The bases of other stores are their
// own order.
func (s *Store) Raises() bool { return s.Rebase || s.Floors }

// Known returns a bound of the bases that this table knows of keys at s. epoch lifts the bases of s if they are
// its own order. It is 0 if the table knows of no base.
func (t *Table) Known(s *Store, epoch uint64) uint64 {
	if st := t.record(s); st != nil {
		return st.known(epoch)
	}
	return 0
}

func (st *storeState) known(epoch uint64) uint64 { return max(st.given(epoch), st.past) }

// Given is like Known, but leaves out the bases that were carried to s. It is a bound of those that s has given.
func (t *Table) Given(s *Store, epoch uint64) uint64 {
	if st := t.record(s); st != nil {
		return st.given(epoch)
	}
	return 0
}

func (st *storeState) given(epoch uint64) uint64 {
	if st.Raises() || st.floor == 0 {
		return st.floor
	}
	return st.floor + epoch
}

// Carry tells the table that keys with bases up to base move to s. If the bases of s can be raised, new ones are
// above it from now on. Otherwise the table remembers base until the keys move on. A base that is out of range
// changes nothing.
func (t *Table) Carry(s *Store, base uint64) { t.store(s).carry(base) }

func (st *storeState) carry(base uint64) {
	if base <= maxCarried {
		st.past = max(st.past, base)
	}
}

// Carries reports whether new bases at s are above base once keys with bases up to it have moved there. epoch
// lifts the bases of s if they are its own order.
func (s *Store) Carries(base, epoch uint64) bool {
	if s.Raises() {
		return base <= maxCarried
	}
	return base <= epoch
}
