package sim

import (
	"errors"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// breaker is the state of upstream.Pump as a circuit breaker.
type breaker struct {
	pinging bool // a ping is in progress, or a series of them
	down    bool
	parked  []*pump // workers of the lane of renewals, which wait until the store is up
	// no rises with each successor that takes over while the store is down, so that the series of
	// pings of the earlier process ends.
	no int
}

var errDown = errors.New("the store does not answer")

// suspect has the store pinged, because a batch was not answered.
func (l *link) suspect() {
	h, b := l.h, &l.breaker
	if b.pinging {
		return
	}
	b.pinging = true
	l.ping(func(ok bool) {
		if ok {
			b.pinging = false
			return
		}
		b.down = true
		h.w.counts.Tallies[outages]++
		h.w.say(nil, "host %d: store %s is down", h.id, l.name)
		h.eng.StoreDown(l.storeLane, errDown)
		l.pingUntilUp(100 * ms)
	})
}

// pingUntilUp pings until the store is up.
func (l *link) pingUntilUp(pause int64) {
	h, no := l.h, l.breaker.no
	l.after(pause*4/5+h.w.between(0, pause*2/5), func() {
		l.ping(func(ok bool) {
			switch {
			case l.breaker.no != no:
			case !ok:
				l.pingUntilUp(min(2*pause, sec))
			default:
				h.w.say(nil, "host %d: store %s is up again", h.id, l.name)
				l.isUp()
			}
		})
	})
}

// isUp lets requests go to the store again.
func (l *link) isUp() {
	h, b := l.h, &l.breaker
	parked := b.parked
	*b = breaker{no: b.no}
	for _, p := range parked {
		l.after(h.w.between(0, 200*us), p.work)
	}
	h.eng.StoreUp(l.storeLane)
}

// trust has a successor find out for itself whether the store is down.
func (l *link) trust() {
	if l.breaker.down {
		l.breaker.no++
		l.isUp()
	}
}

// ping pings the store once.
func (l *link) ping(then func(ok bool)) {
	w := l.h.w
	if l.pair != nil { // both have to answer
		l.pair.parts[0].ping(func(one bool) {
			l.pair.parts[1].ping(func(other bool) { then(one && other) })
		})
		return
	}
	asks := l // the link that receives the answer: the whole outlives a part that a takeover replaces
	if l.whole != nil {
		asks = l.whole
	}
	over := false
	end := func(ok bool) {
		if !over {
			over = true
			then(ok)
		}
	}
	asks.after(w.p.Timeout, func() { end(false) })
	x := l.newFate()
	if x.kind == lostRequest || x.kind == lostReply || l.isCutOff() {
		return
	}
	w.at(l.h.departs()+x.there, func() {
		if w.now < l.s.paused {
			return
		}
		ok := w.now >= l.s.readOnly
		asks.after(x.back, func() {
			if !l.isCutOff() {
				end(ok)
			}
		})
	})
}

// refuse gives a batch back without sending it, because the store is down.
func (p *pump) refuse(b *upstream.Batch) {
	for i := range b.Results {
		b.Results[i] = cache.Result{Status: cache.Refused, Left: -1, Err: errDown}
	}
	p.l.h.eng.Deliver(b)
	p.lane.Done(b)
	p.l.after(p.l.h.w.between(0, 50*us), p.work)
}
