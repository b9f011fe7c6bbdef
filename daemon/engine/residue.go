package engine

import "fmt"

// Residue counts the state of an engine that remains after all sessions have ended. When the stores
// have confirmed all releases, every count is 0.
type Residue struct {
	Sessions int
	Keys     int // in the tables
	Held     int // leases
	Tracked  int // leases in the renewal schedule
	Waiting  int // ops in the lanes
	Flying   int // batches in flight
	Counted  int // holds and waiters, according to the statistics
	Asks     int // requests of users that stores have not answered
	// Unaccounted counts grants without a counted end, and holds and waiters that a user's counters
	// have but no session has.
	Unaccounted int
}

// None reports whether every count is 0.
func (r Residue) None() bool { return r == Residue{} }

func (r Residue) String() string {
	return fmt.Sprintf("%d sessions, %d keys, %d leases (%d tracked), %d ops, %d batches in flight; "+
		"%d asks; counted %d, unaccounted %d",
		r.Sessions, r.Keys, r.Held, r.Tracked, r.Waiting, r.Flying, r.Asks, r.Counted, r.Unaccounted)
}

// Residue counts the present state of e.
func (e *Engine) Residue() Residue {
	var r Residue
	for i := range e.shards {
		sh := e.lock(i)
		r.Keys += sh.table.Len()
		r.Held += sh.table.Held()
		sh.mu.Unlock()
	}
	for _, sl := range e.Stores() {
		r.Tracked += sl.schedule.Len()
		waiting, flying := depth(sl.lanes()...)
		r.Waiting, r.Flying = r.Waiting+waiting, r.Flying+flying
	}
	for _, c := range e.Totals().Classes {
		r.Counted += int(c.Holds + c.Waiters)
		r.Unaccounted += c.Unaccounted()
	}
	e.mu.Lock()
	r.Sessions = len(e.sessions)
	for _, u := range e.users {
		r.Asks += int(u.use.Asks.Load())
		r.Unaccounted += int(u.use.Holds.Load() + u.use.Waiters.Load())
		r.Unaccounted -= int(u.detached.core.Holds.Load())
	}
	for _, s := range e.sessions {
		r.Unaccounted -= int(s.core.Holds.Load() + s.core.Waiters.Load())
	}
	e.mu.Unlock()
	return r
}

// Holds returns the number of the session's holds over all shards.
func (s *Session) Holds() int64 { return s.core.Holds.Load() }

// Counts returns the numbers of the session's holds and waiters over all shards.
func (s *Session) Counts() (holds, waiters int64) {
	return s.core.Holds.Load(), s.core.Waiters.Load()
}
