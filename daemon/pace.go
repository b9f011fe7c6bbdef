package daemon

import (
	"sync/atomic"
	"time"
)

// pace bounds how fast a user may ask: what comes faster is handled later, so that it waits and is not refused. It
// is the generic cell rate algorithm as virtual scheduling (ITU-T I.371, annex A). A user over the limit may still
// open connections and send a request a second on each: otherwise its keepalives and pings would wait for requests of
// other connections, and its clients would take the daemon for hung.
type pace struct{ limit atomic.Pointer[rateLimit] } // nil for no bound

// rateLimit is one limit of a user. Another limit starts afresh: a request counts only against the limit that
// applied when it was read.
type rateLimit struct {
	rate int64        // requests a second
	due  atomic.Int64 // when all that he has asked for is over at that rate
}

const (
	paceAhead = int64(100 * time.Millisecond) // so much may come at once
	paceMost  = time.Second                   // the longest wait for requests of other connections
	paceLook  = 250 * time.Millisecond        // so often a waiting connection is checked for its end
	connWork  = 20                            // what a connection counts, in requests
)

// set changes the limit to rate requests a second; 0 for no bound. Calls must not be concurrent.
func (p *pace) set(rate int64) {
	if l := p.limit.Load(); rate == 0 {
		p.limit.Store(nil)
	} else if l == nil || l.rate != rate {
		p.limit.Store(&rateLimit{rate: rate})
	}
}

// spend notes work, in requests, and returns how long the next has to wait. Light work waits for paceMost at the
// most. It does not count when the user is further ahead than that.
func (l *rateLimit) spend(work int, light bool, now int64) time.Duration {
	took := int64(work) * int64(time.Second) / l.rate
	for {
		due := l.due.Load()
		if light && due > now+int64(paceMost) {
			return paceMost
		}
		next := max(due, now-paceAhead) + took
		if l.due.CompareAndSwap(due, next) {
			wait := time.Duration(max(0, next-now))
			if light {
				wait = min(wait, paceMost)
			}
			return wait
		}
	}
}

// portion returns how many requests of a connection may be handled before it looks at the limit again: what takes
// a twentieth of a second at that rate, or one if the user has been too fast.
func (l *rateLimit) portion(now int64) int {
	if l.due.Load() > now {
		return 1
	}
	return int(min(max(l.rate/20, 1), turnMost))
}

// fresh says that nothing of what he has asked counts any more.
func (p *pace) fresh(now int64) bool {
	l := p.limit.Load()
	return l == nil || l.due.Load() <= now-paceAhead
}

// spend tells the limit in p of what t has handled under it. It returns how long the connection has to wait, while
// that limit applies. If t has handled nothing, such as a part of a frame, the connection has waited already.
func (t *turn) spend(p *pace, now int64) (*rateLimit, time.Duration) {
	l, work, light := t.limit, t.spent, t.light || t.spent <= 1
	t.spent, t.light = 0, false
	if l == nil || work == 0 || l != p.limit.Load() {
		return nil, 0
	}
	return l, l.spend(work, light, now)
}

// keepPace waits while the session's user asks too fast. It returns false when the reader has to stop.
func (c *conn) keepPace(t *turn) bool {
	p := c.s.pace
	if t.limit == nil {
		t.spent, t.light = 0, false
		return true
	}
	limit, wait := t.spend(p, c.d.clock())
	if wait <= 0 {
		return true
	}
	c.d.hasty.say(c.d.clock(), func(skipped int) { c.d.logHasty(c.s.peer, wait, skipped) })
	c.d.putOff.Add(uint64(wait))
	if c.hello.Stop() { // it is not the client who is silent
		defer c.hello.Reset(c.d.now.Load().Limits.MaxSilent)
	}
	c.s.delayed.Store(true)
	defer func() {
		c.s.hear(c.d.clock()) // first, so that what has been stated meanwhile stays true
		c.s.delayed.Store(false)
	}()
	until := c.d.clock() + int64(wait)
	for wait > 0 && p.limit.Load() == limit { // or there is another limit now
		if c.sock.HungUp() { // Read would find what it has sent before
			c.leave()
			return true
		}
		timer := time.NewTimer(min(wait, paceLook))
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
