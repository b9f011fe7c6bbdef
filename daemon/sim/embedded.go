package sim

import (
	"errors"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// The store inside the daemon, as upstream/embedded makes it: its session's
// deadline is on the disk before it is stated, and after a crash nothing is
// granted until it has passed.

// onDisk is what survives the daemon.
type onDisk struct {
	until int64
	base  uint64
}

type inlineStore struct {
	h   *host
	gen int
}

// ApplyInline answers unless the session has to be moved on first.
func (s inlineStore) ApplyInline(op *cache.Op, r *cache.Result) bool {
	if s.h.gen != s.gen {
		return false
	}
	w := s.h.w
	done := s.h.embedded(op, r)
	if done {
		w.counts.Ops[op.Kind]++
		w.counts.Results[r.Status]++
		w.say(w.key(op.Key), "inline: %v %v %d: %v base %d", op.Kind, op.Mode, op.Token, r.Status, r.Base)
	}
	return done
}

func (h *host) openEmbedded() {
	h.session.held = make(map[string]uint64)
	h.session.mode = make(map[string]cache.Mode)
	h.session.wait = make(map[string]bool)
	h.session.permits = make(map[string]map[uint64]bool)
	h.session.id = 1
	if left := h.saved.until - h.boot(); left > 0 {
		h.after(left+ms, func() {
			for _, k := range h.w.all() {
				h.freed(k.name)
			}
		})
	}
}

var errGrace = errors.New("waiting out the validity stated before the restart")

func (h *host) grace() bool { return h.session.until == 0 && h.boot() < h.saved.until }

// fresh says that the session has long enough to go for a grant.
func (h *host) fresh() bool { return h.session.until-h.boot() > h.w.p.Session/3 }

// embedded does one op, or nothing if the session has to be moved on first.
func (h *host) embedded(op *cache.Op, r *cache.Result) bool {
	*r = cache.Result{Left: -1}
	s := &h.session
	if s.until != 0 && h.boot() >= s.until { // nobody relies on it any more
		if op.Kind != cache.OpRelease && op.Kind != cache.OpWithdraw {
			return false
		}
		h.expireEmbedded()
	}
	if op.Mode == cache.Permit {
		return h.embeddedPermit(op, r)
	}
	got, held := s.held[op.Key]
	mine := held && got == op.Token
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		if h.grace() || held && !mine {
			if op.Kind == cache.OpJoin {
				s.wait[op.Key] = true
				r.Status = cache.Queued
			} else if held {
				r.Status = cache.Busy
			} else {
				r.Status, r.Err = cache.Refused, errGrace
			}
			return true
		}
		if !h.fresh() {
			return false
		}
		s.held[op.Key], s.mode[op.Key] = op.Token, op.Mode
		delete(s.wait, op.Key)
		*r = cache.Result{Status: cache.Granted, Base: h.nextBase(op.Floor), Session: s.until, SessionNo: 1}
	case cache.OpRelease, cache.OpWithdraw:
		r.Status = cache.Done
		if mine {
			delete(s.held, op.Key)
			h.freed(op.Key)
		} else if op.Kind == cache.OpRelease {
			r.Status = cache.NotHeld
		}
	case cache.OpRenew, cache.OpDowngrade:
		if !mine {
			r.Status = cache.NotHeld
			return true
		}
		if !h.fresh() {
			return false
		}
		*r = cache.Result{Status: cache.Done, Session: s.until, SessionNo: 1}
		if op.Kind == cache.OpDowngrade {
			s.mode[op.Key] = cache.Shared
		} else if op.Rebase {
			r.Base = h.nextBase(op.Floor)
			h.w.counts.Tallies[rebases]++
		}
	case cache.OpPeek:
		r.Status = cache.Done
		if h.grace() {
			r.Status, r.Err = cache.Refused, errGrace
		} else if held {
			*r = cache.Result{Status: cache.Busy, Mode: s.mode[op.Key], Left: s.until - h.boot()}
		}
	}
	return true
}

func (h *host) nextBase(floor uint64) uint64 {
	h.saved.base = max(h.saved.base, floor, uint64(h.w.store.clock()/us)) + 1
	return h.saved.base
}

// freed tells the daemon that a key came free for which it queues.
func (h *host) freed(key string) {
	if h.session.wait[key] {
		delete(h.session.wait, key)
		x := upstream.Hint{Kind: cache.HintFree, Key: key}
		if h.w.key(key).permits > 0 {
			x.Mode = cache.Permit
		}
		h.after(h.w.between(0, ms), func() { h.eng.Hint(h.unit, x) })
	}
}

// disk does ops that had to wait for the session to be moved on.
func (h *host) disk(ops []*cache.Op, res []*cache.Result) {
	for i, op := range ops {
		if h.embedded(op, res[i]) {
			continue
		}
		h.advance()
		if !h.embedded(op, res[i]) {
			*res[i] = cache.Result{Status: cache.Refused, Left: -1, Err: errGrace}
		}
	}
}

// advance moves the session's deadline on: first on the disk.
func (h *host) advance() {
	s := &h.session
	if h.grace() {
		return
	}
	if s.until != 0 && h.boot() >= s.until {
		h.expireEmbedded()
	}
	h.saved.until = h.boot() + h.w.p.Session
	s.until = h.saved.until
	until := s.until
	h.at(h.w.now, func() { h.eng.StoreSession(h.unit, upstream.Session{No: 1, Until: until}) })
	s.tries++
	try := s.tries
	h.after(h.w.p.Session/3+h.w.between(0, 5*ms), func() { h.extend(try) })
}

// extend moves the deadline on while anything is held.
func (h *host) extend(try int) {
	s := &h.session
	switch {
	case s.tries != try:
	case h.w.now < h.w.store.paused: // the disk is slow
		h.after(h.w.store.paused-h.w.now, func() { h.extend(try) })
	case len(s.held)+len(s.permits) > 0:
		h.advance()
	default:
		s.until, h.saved.until = 0, 0
	}
}

func (h *host) expireEmbedded() {
	h.session.until = 0
	clear(h.session.held)
	clear(h.session.permits)
	for _, k := range h.w.all() {
		h.freed(k.name)
	}
}
