package engine

import (
	"sync/atomic"
	"time"
)

// pace limits the request rate of a user. Requests above the rate are delayed, not refused. It is
// the generic cell rate algorithm as virtual scheduling (ITU-T I.371, annex A). A user over the
// limit may still open connections and send one request a second on each. Otherwise the pings of
// one client would wait for the requests of others, and the client would conclude that the daemon
// hangs.
type pace struct{ limit atomic.Pointer[RateLimit] } // nil for no limit

// RateLimit is one limit of a user. A changed limit starts from zero: a request counts only against
// the limit that applied when it was read.
type RateLimit struct {
	rate int64        // requests a second
	due  atomic.Int64 // when everything charged so far is worked off at that rate
}

// NewRateLimit returns a limit of rate requests a second.
func NewRateLimit(rate int64) *RateLimit { return &RateLimit{rate: rate} }

const (
	paceBurst   = int64(100 * time.Millisecond) // so much work at the user's rate is never delayed
	paceMaxWait = time.Second                   // the longest delay of guaranteed work
	maxQuota    = 32                            // requests between two checks of the limit
)

// set changes the limit to rate requests a second; 0 for no limit. Calls must not be concurrent.
func (p *pace) set(rate int64) {
	if l := p.limit.Load(); rate == 0 {
		p.limit.Store(nil)
	} else if l == nil || l.rate != rate {
		p.limit.Store(NewRateLimit(rate))
	}
}

// Charge adds cost, in requests, to what the user has used. It returns how long the connection has
// to wait before its next request. Guaranteed work waits for paceMaxWait at most, and is not
// charged if the user is further behind than that.
func (l *RateLimit) Charge(cost int, guaranteed bool, now int64) time.Duration {
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

// Quota returns how many requests a connection may handle before it checks the limit again. The
// user's rate allows as many in a twentieth of a second; the quota is one if the user is over the
// limit.
func (l *RateLimit) Quota(now int64) int {
	if l.due.Load() > now {
		return 1
	}
	return int(min(max(l.rate/20, 1), maxQuota))
}

// settled reports whether no earlier request affects the limit any more.
func (p *pace) settled(now int64) bool {
	l := p.limit.Load()
	return l == nil || l.due.Load() <= now-paceBurst
}
