package daemon

import (
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol/sock"
)

// A reader that always finds more input never blocks, and could starve goroutines that wait for
// I/O. So it yields to them after each turn.
const (
	// turnWork is the work between two checks of the clock. Each request, each key of a
	// multi-acquire, each read and each KiB read counts as 1.
	turnWork = 32
	turnTime = 50 * time.Microsecond // the shortest turn

	connCost = 20 // cost of a new connection, in requests
	// delayCheck is the interval at which a delayed connection is checked for its end.
	delayCheck = 250 * time.Millisecond
)

// turn counts a reader's work, for two purposes: the reader yields after enough of it, and the
// user's rate limit is charged for it.
type turn struct {
	dry   uint32    // sock.Conn.Dry at the last read; it changes when a read had to wait for input
	work  int       // since the last check of the clock
	since time.Time // the start of the turn; zero before the first check
	// uncharged counts requests and keys that are not charged to the user's rate limit yet, or KiB
	// if that is more.
	uncharged int
	setup     bool // uncharged is connCost, the cost of the new connection itself
	// limit is the limit that applied when the uncharged requests were handled; nil for none.
	limit *engine.RateLimit
}

// beforeRead counts the read that follows. A turn starts again if the reader has waited for input
// since the last read.
func (t *turn) beforeRead(s *sock.Conn) {
	if n := s.Dry(); n != t.dry {
		t.dry, t.work, t.since = n, 0, time.Time{}
	}
	t.count(1)
}

// count counts work, and yields if the turn has been long enough.
func (t *turn) count(work int) {
	if t.work += work; t.work < turnWork {
		return
	}
	t.work = 0
	now := time.Now()
	if t.since.IsZero() {
		t.since = now
	} else if now.Sub(t.since) >= turnTime {
		sock.Yield()
		t.since = time.Now()
	}
}

// charge charges the user for the work of t that is not charged yet. It returns how long the
// connection has to wait, and the limit that requires it. There is no wait if a reload has replaced
// the limit, so that current is another one. Nor is there a wait without new work, for example
// after a part of a frame: the connection has waited for earlier work already.
func (t *turn) charge(current *engine.RateLimit, now int64) (*engine.RateLimit, time.Duration) {
	l, cost, guaranteed := t.limit, t.uncharged, t.setup || t.uncharged <= 1
	t.uncharged, t.setup = 0, false
	if l == nil || cost == 0 || l != current {
		return nil, 0
	}
	return l, l.Charge(cost, guaranteed, now)
}

// keepPace waits while the session's user is over its rate limit. It returns false if the reader
// has to stop.
func (c *conn) keepPace(t *turn) bool {
	if t.limit == nil {
		t.uncharged, t.setup = 0, false
		return true
	}
	limit, wait := t.charge(c.s.RateLimit(), c.d.clock())
	if wait <= 0 {
		return true
	}
	c.d.audit.Throttled(c.s.Peer(), wait)
	c.d.throttled.Add(uint64(wait))
	if c.hello.Stop() { // the delay does not count against the client: the daemon does not read
		defer c.hello.Reset(c.d.serving.Load().Limits.MaxSilent)
	}
	c.s.BeginDelay()
	defer c.s.EndDelay()
	until := c.d.clock() + int64(wait)
	for wait > 0 && c.s.RateLimit() == limit { // a changed limit ends the wait
		if c.sock.HungUp() { // Read would return the remaining requests before it reports the end
			c.peerGone()
			return true
		}
		timer := time.NewTimer(min(wait, delayCheck))
		select {
		case <-timer.C:
			wait = time.Duration(until - c.d.clock())
			continue
		case <-c.gone:
		case <-c.d.halt:
		case <-c.d.unfrozen().Done():
			timer.Stop()
			return false
		}
		timer.Stop()
		break
	}
	return true
}
