package daemon

import (
	"sync/atomic"
	"time"
)

// pace bounds how fast a user may ask: what comes faster is read later, so that he waits and nobody
// is refused. It is the generic cell rate algorithm as virtual scheduling (ITU-T I.371, annex A).
type pace struct {
	rate atomic.Int64 // requests a second; 0 for no bound
	due  atomic.Int64 // when all that he has asked for is over at that rate
}

const (
	paceAhead = int64(100 * time.Millisecond) // so much may come at once
	connWork  = 20                            // what a connection counts, in requests
)

// spend notes work, in requests, and returns how long the next has to wait.
func (p *pace) spend(work int, now int64) time.Duration {
	rate := p.rate.Load()
	if rate == 0 {
		return 0
	}
	took := int64(work) * int64(time.Second) / rate
	for {
		due := p.due.Load()
		next := max(due, now-paceAhead) + took
		if p.due.CompareAndSwap(due, next) {
			return time.Duration(max(0, next-now))
		}
	}
}

// fresh says that nothing of what he has asked counts any more.
func (p *pace) fresh(now int64) bool { return p.due.Load() <= now-paceAhead }

// keepPace waits before the next read while the session's user asks too fast. It returns false when the
// reader has to stop.
func (c *conn) keepPace(t *turn) bool {
	p := c.s.pace
	if p.rate.Load() == 0 {
		t.spent = 0
		return true
	}
	wait := p.spend(t.spent, c.d.clock())
	t.spent = 0
	if wait <= 0 {
		return true
	}
	c.d.hasty.say(c.d.clock(), func(skipped int) { c.d.logHasty(c.s.peer, wait, skipped) })
	c.d.putOff.Add(uint64(wait))
	if c.hello.Stop() { // it is not the client who is silent
		defer c.hello.Reset(c.d.now.Load().Limits.MaxSilent)
	}
	until, rate := c.d.clock()+int64(wait), p.rate.Load()
	for wait > 0 && p.rate.Load() == rate { // or there is another limit now
		timer := time.NewTimer(min(wait, time.Second))
		select {
		case <-timer.C:
			wait = time.Duration(until - c.d.clock())
			continue
		case <-c.gone:
		case <-c.d.halt:
		case <-c.d.hushed():
			timer.Stop()
			return false
		}
		timer.Stop()
		break
	}
	return true
}
