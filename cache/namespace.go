package cache

import (
	"sync/atomic"
	"time"
)

// StoreTraits describes a store to the tables. It does not change after a table has seen it, except
// by Grants.
type StoreTraits struct {
	ID         int           // its number, from 0; a number is never used again
	Session    bool          // leases depend on the daemon's session there
	SessionTTL time.Duration // the TTL of that session, as far as it was known in advance: see Grants
	TTLs       bool          // leases have TTLs of their own too
	Rebase     bool          // the store can give a held lease a new base
	Floors     bool          // a new base is above Op.Floor; Rebase implies this
	// Pair means that a lease is at two stores: when one has lost it, the other may still have it.
	Pair bool
	// Queue means that waiting hosts queue at the store. Otherwise they poll, and more often.
	Queue bool
	// Keeps is the longest TTL with which the store keeps a lease without this daemon; 0 if it cannot.
	Keeps time.Duration
	// Notice is how late the hint that a held key is contended may be, besides the network delay.
	Notice time.Duration

	granted int64 // the TTL that Grants has stated, in nanoseconds; 0 before. Accessed atomically
}

// Grants records the TTL that the store has granted to the present session. It can differ from
// SessionTTL if the store had not been reached when s was made. It may be called at any time.
func (s *StoreTraits) Grants(ttl time.Duration) { atomic.StoreInt64(&s.granted, int64(ttl)) }

// sessionTTL returns the TTL of the session, in nanoseconds.
func (s *StoreTraits) sessionTTL() int64 {
	if granted := atomic.LoadInt64(&s.granted); granted > 0 {
		return granted
	}
	return int64(s.SessionTTL)
}

// renews reports whether each lease at the store ends by itself unless it is renewed.
func (s *StoreTraits) renews() bool { return !s.Session || s.TTLs }

// Validity returns the longest validity, in nanoseconds, that can be stated for a lease with the
// given TTL. It is the TTL, the TTL of the store session, or the shorter of the two.
func (s *StoreTraits) Validity(ttl int64) int64 {
	switch {
	case !s.Session:
		return ttl
	case s.TTLs:
		return min(ttl, s.sessionTTL())
	}
	return s.sessionTTL()
}

// Namespace is the policy for the keys under a prefix: their store, and what their holders may do.
// It does not change after a table has seen it; a new Namespace replaces it.
type Namespace struct {
	Store          *StoreTraits
	MaxHandoffs    int           // local handoffs of a key while another host waits for it
	MaxHandoffTime time.Duration // the longest time for these handoffs
	// Linger is how long a lease with no hold may be kept, at most half its TTL; 0 for not at all.
	Linger time.Duration
	// LingerPause is how long a key does not linger after another host has acquired or waited for
	// it.
	LingerPause time.Duration
	// MaxWait is the longest wait; 0 for no bound. Callers apply it to Acquire.Wait, and Reroute to
	// waiters.
	MaxWait   time.Duration
	MaxHold   time.Duration // the longest time that an owner may hold a key; 0 for no bound
	Heartbeat time.Duration // a client that is silent for so long loses its holds; 0 for no bound
	// Tenure bounds how long a lease stays with this host while a local waiter waits for it. After
	// that this host does not request the key for Pause. Both are for keys shared with plain
	// lockers, which cannot queue at the store. Both are 0 for other keys.
	Tenure, Pause time.Duration
	// Epoch raises fence bases: it is added to the bases that a store orders itself, and it is the
	// floor of the others.
	Epoch uint64
	// Local allows this host to grant alone, without fences, after the store has been
	// down for LocalAfter.
	Local      bool
	LocalAfter time.Duration
	Use        *Use   // counts all its clients together; nil to not count
	Class      uint16 // the class of its statistics: see Stats
}

// storeRecord is a table's record of a store. It counts the store's users: the leases, in any
// state, that are at the store or will be requested there next. Each hold, waiter, inspection and
// op has a lease, so it needs no count of its own. A store without users may be forgotten.
type storeRecord struct {
	*StoreTraits
	users int // leases, in any state
	held  int // leases in stateHeld
	// moved counts the leases whose keys are routed to another store now, except semaphores' own.
	moved int
	// sessionUntil is the deadline of the store session; Forever on stores without one.
	sessionUntil int64
	sessionNo    uint64 // that session's number
	floor        uint64 // the highest base that the store has given to this host
	past         uint64 // the highest base carried there from another store: see floor.go
	trip         int64  // a moving estimate of the round trip time
	downAt       int64  // since when the store is down; 0 when it is up
	err          error  // why it is down, for people
	stats        StoreStats
}

// maxTrip bounds the effect of one slow answer on the estimate.
const maxTrip = int64(200 * time.Millisecond)

// noteTrip updates the estimate of the round trip time after an answer that took trip.
func (st *storeRecord) noteTrip(r *Result, trip int64) {
	if r.Status == Unknown || r.Status == Refused {
		return
	}
	trip = min(trip, maxTrip)
	if st.trip == 0 {
		st.trip = trip
	}
	st.trip += (trip - st.trip) / 8
}

// sessionShort reports whether the session has to be renewed before a handoff to a hold of ttl.
func (st *storeRecord) sessionShort(ttl, now int64) bool {
	return st.Session && st.sessionUntil-now < min(ttl, st.sessionTTL())/3
}

// record returns the table's record of s, or nil if there is none.
func (t *Table) record(s *StoreTraits) *storeRecord {
	if s.ID < len(t.stores) {
		return t.stores[s.ID]
	}
	return nil
}

// store returns the table's record of s, which it makes if there is none.
func (t *Table) store(s *StoreTraits) *storeRecord {
	if st := t.record(s); st != nil {
		return st
	}
	for s.ID >= len(t.stores) {
		t.stores = append(t.stores, nil)
	}
	st := &storeRecord{StoreTraits: s, sessionUntil: Forever}
	if s.Session {
		st.sessionUntil = 0
	}
	t.stores[s.ID] = st
	return st
}

// Users counts the leases of this table that are, or may be, at a store or will be requested there
// next.
func (t *Table) Users(s *StoreTraits) int {
	if st := t.record(s); st != nil {
		return st.users
	}
	return 0
}

// Forget drops the record of a store, which must have no users. No key may be routed to it.
func (t *Table) Forget(s *StoreTraits) {
	if s.ID < len(t.stores) {
		t.stores[s.ID] = nil
	}
}
