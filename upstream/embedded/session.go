package embedded

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

const maxLimit = cache.MaxBase + 1

// session is the daemon's session at this store: its deadline W and the fence bases.
type session struct {
	path  string
	boot  string
	ttl   time.Duration
	clock upstream.Clock
	wall  func() time.Time
	log   *zap.Logger

	grace     int64         // nothing is granted before this time of the boot clock
	graceTTL  time.Duration // the longest TTL of a deadline that the file may have
	graceOver atomic.Bool   // run has noticed the end of grace
	failing   bool          // run's last write of the file failed
	dirty     atomic.Bool   // the file has a lease that has been released
	// kept returns the leases for the file: see Store.keptLeases.
	kept func(atLeast int64) []keptLease

	held  atomic.Int64  // leases in all shards
	until atomic.Int64  // W, or 0 without a session; written under io
	no    atomic.Uint64 // the session's number; written under io after until, once W has passed
	limit atomic.Uint64 // bases stay below it; written under io
	base  atomic.Uint64 // the last base granted

	io        sync.Mutex // serialises changes of until and limit; held across the file's fsync
	deadlines driverkit.Sessions
	kick      chan struct{} // wakes run, because there are leases
	stop      chan struct{}
}

// left gets the kept leases of the file, and whether they are of this boot.
func (n *session) open(opts Options, left func(kept []keptLease, sameBoot bool)) error {
	n.path, n.boot, n.ttl, n.graceTTL = opts.Path, opts.Boot, opts.Session, opts.Session
	n.clock, n.wall, n.log = opts.Clock, opts.Wall, opts.Log
	n.deadlines = driverkit.NewSessions()
	n.kick = make(chan struct{}, 1)
	n.stop = make(chan struct{})
	n.no.Store(1)
	if n.path == "" || opts.Successor {
		return nil
	}
	st, err := readState(n.path)
	if err != nil {
		return err
	}
	if now := n.clock(); st.Boot == n.boot && st.Until > now {
		// A deadline is at most its TTL ahead when it is written. A deadline that is further ahead
		// now was written by another clock.
		n.grace = min(st.Until, now+st.TTL)
		n.graceTTL = max(n.ttl, time.Duration(st.TTL))
	}
	left(st.Kept, st.Boot == n.boot)
	n.base.Store(max(st.Limit, 1) - 1)
	n.limit.Store(st.Limit)
	// The old deadline stays in the file until it has passed. It is written again to find out at
	// once whether the file can be written.
	return n.write(n.grace, st.Limit)
}

// write writes the state that must survive a crash. The caller holds io, or is the only one with
// access to n.
func (n *session) write(until int64, limit uint64) error {
	return n.writeKept(until, limit, 0)
}

// writeKept is write. Kept leases of this process last at least until atLeast.
func (n *session) writeKept(until int64, limit uint64, atLeast int64) error {
	if n.path == "" {
		return nil
	}
	st := state{Boot: n.boot, Until: until, TTL: int64(n.graceTTL), Limit: limit,
		Kept: n.kept(atLeast)}
	return st.write(n.path)
}

// waiting returns how long nothing may be granted yet. Until then, programs may rely on the
// validity stated before the restart.
func (n *session) waiting(now int64) time.Duration {
	return max(0, time.Duration(n.grace-now))
}

// fresh reports whether the time until the deadline is long enough for a grant. It always is while
// run can extend the session.
func (n *session) fresh(until, now int64) bool { return until-now > int64(n.ttl)/3 }

// nextBase returns a new base above floor, or 0 if the limit must be raised first.
func (n *session) nextBase(floor uint64) uint64 {
	for {
		prev := n.base.Load()
		next := max(prev+1, floor+1, uint64(max(n.wall().UnixMicro(), 0)))
		if next >= n.limit.Load() {
			return 0
		}
		if n.base.CompareAndSwap(prev, next) {
			return next
		}
	}
}

// reserve returns how far the limit in the file is ahead of the bases in use. A base is a µs of the
// wall clock, so the limit needs no more writes than the deadline. When the deadline has passed,
// the clock is past the limit. So the bases after a restart are not ahead of the clock. If they
// were, keys that move to a store of several hosts would raise all fences there.
func (n *session) reserve() uint64 { return uint64(n.ttl.Microseconds()) }

// advance extends the session's deadline and the limit. It publishes the deadline once it is in the
// file. If onlyHeld is true and there are no leases, it removes the deadline instead.
func (s *Store) advance(floor uint64, onlyHeld bool) error {
	n := &s.session
	n.io.Lock()
	defer n.io.Unlock()
	now := n.clock()
	if n.waiting(now) > 0 {
		return waitingError(n.waiting(now))
	}
	if w := n.until.Load(); w != 0 && now >= w {
		s.expire()
	}
	if onlyHeld && n.held.Load() == 0 {
		return n.retire()
	}
	used := max(n.base.Load(), floor, uint64(max(n.wall().UnixMicro(), 0)))
	if n.until.Load()-now > 2*int64(n.ttl)/3 && used+n.reserve()/2 < n.limit.Load() {
		return nil // a concurrent call has just done it
	}
	if used >= maxLimit-2 {
		return fmt.Errorf("fence bases are used up at %d", used)
	}
	until, limit := now+int64(n.ttl), max(n.limit.Load(), min(used+n.reserve(), maxLimit))
	if err := n.write(until, limit); err != nil {
		return err
	}
	n.limit.Store(limit)
	n.until.Store(until)
	n.deadlines.Send(upstream.Session{No: n.no.Load(), Until: until})
	n.wake()
	return nil
}

// retire removes the deadline if there are no leases. It also lowers the limit, so that the bases
// after a restart follow without a gap. The caller holds io.
func (n *session) retire() error {
	until := n.until.Load()
	if until == 0 {
		return nil
	}
	// A grant takes its base, then counts itself in held, and then reads until for the last time. A
	// grant that held does not count below therefore reads this 0. No earlier grant's base is above
	// base.
	n.until.Store(0)
	if n.held.Load() != 0 {
		n.until.Store(until)
		return nil
	}
	n.limit.Store(n.base.Load() + 1) // the next grant has to advance it, because until is 0
	return n.write(0, n.limit.Load())
}

// end removes the deadline if no lease depends on it, and lowers the limit so that the bases of the
// next start follow without a gap. A client may rely on a kept lease until the deadline. The caller
// holds io.
func (s *Store) end() error {
	n := &s.session
	if n.waiting(n.clock()) > 0 || !s.allKept() || n.limit.Load() == 0 {
		if n.dirty.Load() {
			return n.rewrite()
		}
		return nil
	}
	until := n.until.Load()
	n.until.Store(0)
	return n.writeKept(0, n.base.Load()+1, until)
}

// wake wakes run, because there are leases.
func (n *session) wake() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// run extends the session while there are leases.
func (s *Store) run() {
	defer close(s.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.session.stop:
			return
		case <-s.session.kick:
		case <-timer.C:
		}
		if d := s.step(); d > 0 {
			timer.Reset(d)
		} else {
			timer.Stop()
		}
	}
}

// step does what is due and returns the time until the next step. It returns 0 if there is no next
// step before a wake.
func (s *Store) step() time.Duration {
	n := &s.session
	if n.dirty.Load() {
		n.io.Lock()
		_ = n.rewrite() // if it fails, the next write has the same leases
		n.io.Unlock()
	}
	now := n.clock()
	if left := n.waiting(now); left > 0 {
		return left
	}
	if n.grace != 0 && !n.graceOver.Load() {
		n.io.Lock() // hintAll changes state that Leave reads
		n.graceOver.Store(true)
		s.hintAll()
		n.io.Unlock()
	}
	until := n.until.Load()
	if until == 0 && n.held.Load() == 0 {
		return 0
	}
	if due := time.Duration(until - now - 2*int64(n.ttl)/3); due > 0 {
		return due
	}
	err := s.advance(0, true)
	if err != nil && !n.failing {
		n.log.Error("cannot extend the session: held locks end at their deadline",
			zap.Error(err), zap.Duration("left", max(0, time.Duration(n.until.Load()-n.clock()))))
	}
	if n.failing = err != nil; n.failing {
		return max(n.ttl/100, time.Millisecond)
	}
	if n.until.Load() == 0 && n.held.Load() == 0 {
		return 0
	}
	return n.ttl / 3
}

func waitingError(left time.Duration) error {
	const text = "after a crash it waits until the locks granted before are over: %.1f s left"
	return fmt.Errorf(text, left.Seconds())
}
