package daemon

import (
	"sync/atomic"
	"time"
)

// pace limits the request rate of a user. Requests above the rate are delayed, not refused. It is the generic cell
// rate algorithm as virtual scheduling (ITU-T I.371, annex A). A user over the limit may still open connections and
// send one request a second on each: otherwise its keepalives and pings would wait for requests of other connections,
// and its clients would conclude that the daemon hangs.
type pace struct{ limit atomic.Pointer[rateLimit] } // nil for no limit

// rateLimit is one limit of a user. A changed limit starts from zero: a request counts only against the limit that
// applied when it was read.
type rateLimit struct {
	rate int64        // requests a second
	due  atomic.Int64 // when everything charged so far is worked off at that rate
}

const (
	paceBurst   = int64(100 * time.Millisecond) // work that takes this long at the user's rate is not delayed
	paceMaxWait = time.Second                   // the longest delay of guaranteed work
	paceCheck   = 250 * time.Millisecond        // interval at which a delayed connection is checked for its end
	connCost    = 20                            // cost of a new connection, in requests
)

// set changes the limit to rate requests a second; 0 for no limit. Calls must not be concurrent.
func (p *pace) set(rate int64) {
	if l := p.limit.Load(); rate == 0 {
		p.limit.Store(nil)
	} else if l == nil || l.rate != rate {
		p.limit.Store(&rateLimit{rate: rate})
	}
}

// charge adds cost, in requests, to what the user has used. It returns how long the connection has to wait before its
// next request. Guaranteed work waits for paceMaxWait at most, and is not charged if the user is further behind than
// that.
func (l *rateLimit) charge(cost int, guaranteed bool, now int64) time.Duration {
	took := int64(cost) * int64(time.Second) / l.rate
	for {
		due := l.due.Load()
		if guaranteed && due > now+int64(paceMaxWait) {
			return paceMaxWait
		}
		next := max(due, now-paceBurst) + took
		if l.due.CompareAndSwap(due, next) {
			wait := time.Duration(max(0, next-now))
			if guaranteed {
				wait = min(wait, paceMaxWait)
			}
			return wait
		}
	}
}

// quota returns how many requests a connection may handle before it checks the limit again: a twentieth of a second's
// worth at the user's rate, or one if the user is over the limit.
func (l *rateLimit) quota(now int64) int {
	if l.due.Load() > now {
		return 1
	}
	return int(min(max(l.rate/20, 1), turnWork))
}

// settled reports whether no earlier request affects the limit any more.
func (p *pace) settled(now int64) bool {
	l := p.limit.Load()
	return l == nil || l.due.Load() <= now-paceBurst
}

// charge charges p for the work of t that is not charged yet. It returns how long the connection has to wait, and the
// limit that requires it. There is no wait if the limit has changed since the work was read. Nor is there one for no
// work, such as a part of a frame: the connection has then waited already.
func (t *turn) charge(p *pace, now int64) (*rateLimit, time.Duration) {
	l, cost, guaranteed := t.limit, t.uncharged, t.setup || t.uncharged <= 1
	t.uncharged, t.setup = 0, false
	if l == nil || cost == 0 || l != p.limit.Load() {
		return nil, 0
	}
	return l, l.charge(cost, guaranteed, now)
}

// keepPace waits while the session's user is over its rate limit. It returns false if the reader has to stop.
func (c *conn) keepPace(t *turn) bool {
	p := c.s.pace
	if t.limit == nil {
		t.uncharged, t.setup = 0, false
		return true
	}
	limit, wait := t.charge(p, c.d.clock())
	if wait <= 0 {
		return true
	}
	c.d.throttled.say(c.d.clock(), func(skipped int) { c.d.logThrottled(c.s.peer, wait, skipped) })
	c.d.putOff.Add(uint64(wait))
	if c.hello.Stop() { // the time does not count: the daemon does not read
		defer c.hello.Reset(c.d.now.Load().Limits.MaxSilent)
	}
	c.s.delayed.Store(true)
	defer func() {
		c.s.hear(c.d.clock()) // before delayed changes, so that validity stated during the delay stays true
		c.s.delayed.Store(false)
	}()
	until := c.d.clock() + int64(wait)
	for wait > 0 && p.limit.Load() == limit { // a changed limit ends the wait
		if c.sock.HungUp() { // Read would return the remaining requests before it reports the end
			c.leave()
			return true
		}
		timer := time.NewTimer(min(wait, paceCheck))
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
