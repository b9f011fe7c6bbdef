package redis

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// age is what a store knows, and asks for, of how long its server has run.
type age struct {
	least time.Duration          // 0: any
	run   atomic.Pointer[string] // the id of the run that the last connection led to
}

// MinUptime has the store refuse every op, saying for how much longer, while its
// server has run for less than d, or for a time that it does not tell: of several
// independent servers, one that may have forgotten what it granted must not vote
// until all of that is over.
func MinUptime(d time.Duration) Option { return func(s *Store) { s.age.least = d } }

// RunID is the id of the run of the server that the last connection led to; it is
// empty while there was none, and when the server does not tell.
func (s *Store) RunID() string {
	if id := s.age.run.Load(); id != nil {
		return *id
	}
	return ""
}

// judge looks at INFO server of a new connection; no connection outlives a restart.
// The uptime is in whole seconds, and may have begun up to one later than it seems.
// It goes by the server's wall clock: a step of that makes leases end too, so it is
// no worse than what it does anyway.
func (a *age) judge(info string) error {
	id := infoField(info, "run_id")
	a.run.Store(&id)
	if a.least == 0 {
		return nil
	}
	n, err := strconv.ParseInt(infoField(info, "uptime_in_seconds"), 10, 32)
	if err != nil {
		return fmt.Errorf("%w: it does not say since when it runs (ACL: +info), so it has no vote", ErrServer)
	}
	if wait := a.least - time.Duration(n-1)*time.Second; wait > 0 {
		return fmt.Errorf("%w: it has run for %d s and may have forgotten locks; it does not vote for another %v, which max_ttl in the store URL is about",
			ErrServer, n, wait.Round(time.Second))
	}
	return nil
}
