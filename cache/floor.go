package cache

import "slices"

// This file keeps the fence floors: a new base has to be above the bases that this host has seen. A
// table knows one floor per store. When keys move to another store, the floor moves with them. So
// the fences of one host rise over a reload even if the new store's counter and clock are behind.

// maxCarried is the highest floor that a store takes over from another one. It is above every base
// that the largest fence_epoch leads to, and 2^51 bases are above it. So a wrong base of one store,
// from a damaged counter for example, cannot use up the bases of another.
const maxCarried = 3 << 51

// Raises reports whether the store can raise bases, so that a new base is above Op.Floor. Other
// stores order their bases themselves.
func (s *StoreTraits) Raises() bool { return s.Rebase || s.Floors }

// Known returns an upper bound of the bases that this table knows of keys at s; 0 if it knows of
// none. epoch raises the bases of s if s orders them itself.
func (t *Table) Known(s *StoreTraits, epoch uint64) uint64 {
	if st := t.record(s); st != nil {
		return st.known(epoch)
	}
	return 0
}

func (st *storeRecord) known(epoch uint64) uint64 { return max(st.given(epoch), st.past) }

// Given is like Known, but considers only the bases that s itself has given.
func (t *Table) Given(s *StoreTraits, epoch uint64) uint64 {
	if st := t.record(s); st != nil {
		return st.given(epoch)
	}
	return 0
}

func (st *storeRecord) given(epoch uint64) uint64 {
	if st.Raises() || st.floor == 0 {
		return st.floor
	}
	return st.floor + epoch
}

// Carry tells the table that keys with bases up to base move to s. If s can raise its bases, its
// new bases are above base from now on. Otherwise the table remembers base until the keys move on.
// Carry ignores a base that is out of range.
func (t *Table) Carry(s *StoreTraits, base uint64) { t.store(s).carry(base) }

func (st *storeRecord) carry(base uint64) {
	if base <= maxCarried {
		st.past = max(st.past, base)
	}
}

// move says that keys move from one store to another. epoch raises the bases of from if from orders
// them itself.
type move struct {
	from, to *storeRecord
	epoch    uint64
}

// Leave tells the table that keys move from a store to another one. Until Reroute, which has to be
// called next, the leases of these keys are at the earlier store, and requests there may still be
// answered. A lease that ends meanwhile is forgotten, and the next one for its key begins at the
// new store. So a base that the earlier store gives is carried to the new store at once.
func (t *Table) Leave(from, to *StoreTraits, epoch uint64) {
	m := move{t.store(from), t.store(to), epoch}
	if !slices.Contains(t.leaving, m) {
		t.leaving = append(t.leaving, m)
	}
}

// noteBase records a base that st has given.
func (t *Table) noteBase(st *storeRecord, base uint64) {
	if base > MaxBase || base <= st.floor {
		return
	}
	st.floor = base
	for _, m := range t.leaving {
		if m.from == st {
			m.to.carry(st.known(m.epoch))
		}
	}
}

// Carries reports whether new bases at s are above base once keys with bases up to base have moved
// there. epoch raises the bases of s if s orders them itself.
func (s *StoreTraits) Carries(base, epoch uint64) bool {
	if s.Raises() {
		return base <= maxCarried
	}
	return base <= epoch
}
