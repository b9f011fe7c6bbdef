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
func (l Residue) None() bool { return l == Residue{} }

func (l Residue) String() string {
	return fmt.Sprintf("%d sessions, %d keys, %d leases (%d tracked), %d ops, %d batches in flight; "+
		"%d asks; counted %d, unaccounted %d",
		l.Sessions, l.Keys, l.Held, l.Tracked, l.Waiting, l.Flying, l.Asks, l.Counted, l.Unaccounted)
}

// Residue counts the present state of e.
func (e *Engine) Residue() Residue {
	var l Residue
	for i := range e.shards {
		sh := e.lock(i)
		l.Keys += sh.table.Len()
		l.Held += sh.table.Held()
		sh.mu.Unlock()
	}
	for _, sl := range e.Stores() {
		l.Tracked += sl.schedule.Len()
		waiting, flying := depth(sl.lanes()...)
		l.Waiting, l.Flying = l.Waiting+waiting, l.Flying+flying
	}
	for _, c := range e.Totals().Classes {
		l.Counted += int(c.Holds + c.Waiters)
		l.Unaccounted += c.Unaccounted()
	}
	e.mu.Lock()
	l.Sessions = len(e.sessions)
	for _, u := range e.users {
		l.Asks += int(u.use.Asks.Load())
		l.Unaccounted += int(u.use.Holds.Load() + u.use.Waiters.Load())
		l.Unaccounted -= int(u.detached.core.Holds.Load())
	}
	for _, s := range e.sessions {
		l.Unaccounted -= int(s.core.Holds.Load() + s.core.Waiters.Load())
	}
	e.mu.Unlock()
	return l
}

// Holds returns the number of the session's holds over all shards.
func (s *Session) Holds() int64 { return s.core.Holds.Load() }

// Counts returns the numbers of the session's holds and waiters over all shards.
func (s *Session) Counts() (holds, waiters int64) {
	return s.core.Holds.Load(), s.core.Waiters.Load()
}
