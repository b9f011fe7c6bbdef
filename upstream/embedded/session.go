package embedded

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const (
	maxLimit = cache.MaxBase + 1
	// reserve is how far ahead of what is used the limit of fence bases is
	// written, in bases, which are µs of the wall clock: with a write a minute
	// the limit alone costs nothing.
	reserve = 60_000_000
)

// session is the daemon's session at this store: its deadline W and the fence
// bases.
type session struct {
	path  string
	boot  string
	ttl   time.Duration
	clock upstream.Clock
	wall  func() time.Time
	log   *zap.Logger

	grace     int64         // nothing is granted before this time of the boot clock
	graceTTL  time.Duration // the longest TTL that may stand behind a deadline in the file
	graceOver atomic.Bool   // run has seen grace pass
	failing   bool          // run could not write the file the last time

	held  atomic.Int64  // leases in all shards
	until atomic.Int64  // W; 0 when there is no session. Written under io
	no    atomic.Uint64 // the session's number, which rises when W has passed. Written under io, after until
	limit atomic.Uint64 // bases stay below it. Written under io
	base  atomic.Uint64 // the last one given out

	io   sync.Mutex // serialises whatever moves until or limit, across the file's fsync
	news chan upstream.Session
	kick chan struct{} // something is held: run has to look
	stop chan struct{}
}

func (n *session) open(opts Options) error {
	n.path, n.boot, n.ttl, n.graceTTL = opts.Path, opts.Boot, opts.Session, opts.Session
	n.clock, n.wall, n.log = opts.Clock, opts.Wall, opts.Log
	n.news = make(chan upstream.Session, 1)
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
		// No deadline was ever further away than its TTL when it was written; one
		// that is now was written by another clock.
		n.grace = min(st.Until, now+st.TTL)
		n.graceTTL = max(n.ttl, time.Duration(st.TTL))
	}
	n.base.Store(max(st.Limit, 1) - 1)
	n.limit.Store(st.Limit)
	// The old deadline stays in the file until it has passed. Writing it back
	// shows at once whether the file can be written.
	return n.write(n.grace, st.Limit)
}

// write puts what has to survive into the file. io is held, or nobody else has
// the session yet.
func (n *session) write(until int64, limit uint64) error {
	if n.path == "" {
		return nil
	}
	st := state{Boot: n.boot, Until: until, TTL: int64(n.graceTTL), Limit: limit}
	return st.write(n.path)
}

// waiting is how long nothing may be granted yet: somebody may still rely on
// what was stated before the restart.
func (n *session) waiting(now int64) time.Duration {
	return max(0, time.Duration(n.grace-now))
}

// fresh says that the session has long enough to go for a grant: while run does
// its work it always has.
func (n *session) fresh(until, now int64) bool { return until-now > int64(n.ttl)/3 }

// nextBase is a new base above floor, or 0 when the limit has to be moved first.
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

// advance moves the session's deadline and the limit on, and publishes the
// deadline when the file has it. With onlyHeld it takes the deadline back instead
// when nothing is held.
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
	if until := n.until.Load(); until-now > 2*int64(n.ttl)/3 && used+reserve/2 < n.limit.Load() {
		return nil // somebody else has just done it
	}
	if used >= maxLimit-2 {
		return fmt.Errorf("fence bases are used up at %d", used)
	}
	until, limit := now+int64(n.ttl), max(n.limit.Load(), min(used+reserve, maxLimit))
	if err := n.write(until, limit); err != nil {
		return err
	}
	n.limit.Store(limit)
	n.until.Store(until)
	n.publish(upstream.Session{No: n.no.Load(), Until: until})
	n.wake()
	return nil
}

// retire takes the deadline back if nothing is held. io is held.
func (n *session) retire() error {
	until := n.until.Load()
	if until == 0 {
		return nil
	}
	// First here, then in the file. A grant counts itself in held before it looks
	// at until for the last time: either it is seen here, or it sees this.
	n.until.Store(0)
	if n.held.Load() != 0 {
		n.until.Store(until)
		return nil
	}
	return n.write(0, n.limit.Load())
}

// end is retire for the last time: the next start has not to leave a gap in the
// bases. io is held.
func (n *session) end() error {
	if n.waiting(n.clock()) > 0 || n.held.Load() != 0 || n.limit.Load() == 0 {
		return nil
	}
	n.until.Store(0)
	return n.write(0, n.base.Load()+1)
}

// publish leaves the newest deadline in the stream. io is held.
func (n *session) publish(news upstream.Session) {
	select {
	case <-n.news:
	default:
	}
	n.news <- news
}

// wake tells run that there is something to keep.
func (n *session) wake() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// run keeps the session going while anything is held.
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

// step does what is due now and returns when the next step is, 0 when nothing
// has to be done until somebody asks for something.
func (s *Store) step() time.Duration {
	n := &s.session
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
		n.log.Error("cannot extend the session: what is held ends at its deadline",
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
	return fmt.Errorf("waiting out the validity stated before the restart: %.1f s left", left.Seconds())
}
