package redis

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// uptime has what a store requires of its server's uptime, and the id of the server's run.
type uptime struct {
	min   time.Duration          // the shortest uptime of a server that may be used
	runID atomic.Pointer[string] // the id of the run that the last connection led to
}

// RunID returns the id of the run of the server that the last connection led to. It is empty if
// there was no connection yet, or if the server does not report it.
func (s *Store) RunID() string {
	if id := s.uptime.runID.Load(); id != nil {
		return *id
	}
	return ""
}

// check reads the reply to INFO server on a new connection. No connection outlives a restart. The
// uptime is in whole seconds, so the server may have started up to one second later than it seems.
// The uptime follows the server's wall clock. A step of that clock changes the uptime, but it ends
// leases, too, so this adds no harm.
func (a *uptime) check(info string) error {
	id := infoField(info, "run_id")
	a.runID.Store(&id)
	if a.min == 0 {
		return nil
	}
	n, err := strconv.ParseInt(infoField(info, "uptime_in_seconds"), 10, 32)
	if err != nil {
		return fmt.Errorf("%w: it does not say since when it runs (ACL: +info), so it has no vote",
			ErrServer)
	}
	if wait := a.min - time.Duration(n-1)*time.Second; wait > 0 {
		return fmt.Errorf("%w: it has run for %d s and may have forgotten locks; it does not "+
			"vote for another %v, which max_ttl in the store URL is about",
			ErrServer, n, wait.Round(time.Second))
	}
	return nil
}
