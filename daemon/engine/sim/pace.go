package sim

import (
	"math"
	"slices"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// This file has the rate limit of users, as the daemon's readers apply it (daemon/turn.go).

const (
	connCost   = 20 // cost of a new connection, in requests
	delayCheck = 250 * ms
)

// pacing is the state of a reader whose user has a rate limit.
type pacing struct {
	limit     *engine.RateLimit // the limit that applied when the uncharged requests were handled
	uncharged int               // how many requests were handled and not charged yet
	setup     bool              // uncharged is the cost of the connection itself
	delayed   bool              // the daemon does not read from the client for now
	no        int               // number of this delay: timers of earlier ones do nothing
	more      bool              // whole frames may be left in conn.unread
	coming    []coming
}

// coming is a request that the daemon has read and not handled.
type coming struct {
	q   *request
	end int // where its bytes end in conn.unread
}

// paced handles the frames in k.unread, as far as the rate limit allows.
func (k *conn) paced() {
	p := &k.pacing
	p.more = false
	for !k.ended && !k.unresponsive {
		p.limit = k.s.RateLimit()
		quota, work := math.MaxInt, 0
		if p.limit != nil {
			quota = p.limit.Quota(k.h.clock())
		}
		for work < quota && !k.ended && !k.unresponsive {
			did := k.handleOne()
			if work += did; did == 0 {
				break
			}
		}
		p.uncharged += work
		if k.keepPace() || work < quota {
			return
		}
	}
}

// handleOne handles the first frame of k.unread, and returns how much work that was. A request
// counts as having arrived when it is handled.
func (k *conn) handleOne() int {
	p, n := &k.pacing, 0
	if _, rest, whole, err := protocol.Cut(k.unread, maxFrame); whole && err == nil {
		n = len(k.unread) - len(rest)
	}
	for i := range p.coming {
		if p.coming[i].end -= n; p.coming[i].end <= 0 {
			k.arrives(p.coming[i].q)
		}
	}
	p.coming = slices.DeleteFunc(p.coming, func(x coming) bool { return x.end <= 0 })
	rest, work, ok := k.s.ReceiveUpTo(k.unread, 1)
	if len(rest) < len(k.unread) {
		k.hears()
	}
	k.unread = k.unread[:copy(k.unread, rest)]
	k.unresponsive = k.unresponsive || !ok
	return work
}

// keepPace charges the user for what was handled. It reports whether the reader has to wait.
func (k *conn) keepPace() bool {
	p, w := &k.pacing, k.h.w
	limit, cost, guaranteed := p.limit, p.uncharged, p.setup || p.uncharged <= 1
	p.uncharged, p.setup = 0, false
	if k.ended || limit == nil || cost == 0 || limit != k.s.RateLimit() {
		return false
	}
	wait := int64(limit.Charge(cost, guaranteed, k.h.clock()))
	if wait <= 0 {
		return false
	}
	w.counts.Tallies[delays]++
	w.say(nil, "client %d is delayed for %d ms", k.c.id, wait/ms)
	k.s.BeginDelay()
	p.delayed, p.more = true, true
	p.no++
	if k.c.k == k {
		k.c.frozenTotal += wait
	}
	no, until := p.no, k.h.clock()+wait
	var check func()
	check = func() {
		switch left := until - k.h.clock(); {
		case k.ended || !p.delayed || p.no != no:
		case left > 0 && k.s.RateLimit() == limit: // a changed limit ends the wait
			k.at(w.now+min(left, delayCheck), check)
		default:
			k.endDelay()
			k.readable()
		}
	}
	k.at(w.now+min(wait, delayCheck), check)
	return true
}

// endDelay has the daemon read from the client again.
func (k *conn) endDelay() {
	k.pacing.delayed = false
	k.s.EndDelay()
	k.hears()
}

// hears records that the client counts as alive.
func (k *conn) hears() { k.heard, k.heardFrozen, k.asked = k.h.w.now, k.h.frozenSoFar(), 0 }

// closedBy reports whether the end of the stream has arrived.
func (s *stream) closedBy(now int64) bool {
	return slices.ContainsFunc(s.chunks, func(c chunk) bool { return c.fin && c.at <= now })
}
