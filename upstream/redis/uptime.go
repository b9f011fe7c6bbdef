package redis

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// uptime is what a store knows of its server's uptime, and requires of it.
type uptime struct {
	min   time.Duration          // 0: any
	runID atomic.Pointer[string] // the id of the run that the last connection led to
}

// MinUptime makes the store refuse every op while its server has run for less than d, or does not
// report its uptime. The errors say how long that will last. Among several independent servers, one
// that may have forgotten its locks must not vote until all of these have expired.
func MinUptime(d time.Duration) Option { return func(s *Store) { s.uptime.min = d } }

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
// It follows the server's wall clock. A step of that clock ends leases too, so it does no harm
// beyond that.
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
