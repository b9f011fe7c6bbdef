package sim

import (
	"errors"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// breaker is what upstream.Pump knows of its store being down.
type breaker struct {
	looking bool // pings are under way
	down    bool
	parked  []*pump // renewals that wait for the store
}

var errDown = errors.New("the store does not answer")

// suspect has the store pinged: a batch was not answered.
func (h *host) suspect() {
	b := &h.breaker
	if b.looking {
		return
	}
	b.looking = true
	h.ping(func(ok bool) {
		if ok {
			b.looking = false
			return
		}
		b.down = true
		h.w.counts.Tallies[outages]++
		h.w.say(nil, "host %d: the store is down", h.id)
		h.eng.StoreDown(h.unit, errDown)
		h.outlast(100 * ms)
	})
}

// outlast pings until the store is up.
func (h *host) outlast(pause int64) {
	h.after(pause*4/5+h.w.between(0, pause*2/5), func() {
		h.ping(func(ok bool) {
			if !ok {
				h.outlast(min(2*pause, sec))
				return
			}
			b := &h.breaker
			parked := b.parked
			*b = breaker{}
			h.w.say(nil, "host %d: the store is up again", h.id)
			for _, p := range parked {
				h.after(h.w.between(0, 200*us), p.work)
			}
			h.eng.StoreUp(h.unit)
		})
	})
}

// ping asks the store for an answer, once.
func (h *host) ping(then func(ok bool)) {
	w := h.w
	over := false
	end := func(ok bool) {
		if !over {
			over = true
			then(ok)
		}
	}
	h.after(w.p.Timeout, func() { end(false) })
	x := w.newFate()
	if x.kind == lostRequest || x.kind == lostReply || h.cutOff > w.now && !w.calm {
		return
	}
	w.at(h.departs()+x.there, func() {
		if w.now < w.store.paused {
			return
		}
		ok := w.now >= w.store.readOnly
		h.after(x.back, func() {
			if h.cutOff <= w.now || w.calm {
				end(ok)
			}
		})
	})
}

// refuse gives a batch back without having asked: the store is down.
func (p *pump) refuse(b *upstream.Batch) {
	for i := range b.Results {
		b.Results[i] = cache.Result{Status: cache.Refused, Left: -1, Err: errDown}
	}
	p.h.eng.Deliver(b)
	p.lane.Done(b)
	p.h.after(p.h.w.between(0, 50*us), p.work)
}
