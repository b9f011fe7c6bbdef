package sim

import (
	"errors"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// The store inside the daemon, as upstream/embedded implements it. The deadline of its session is
// on the disk before it is stated. After a crash, the store grants nothing until the deadline on
// the disk has passed.

// onDisk is the state that survives the daemon.
type onDisk struct {
	until int64
	base  uint64
}

type inlineStore struct{ l *link }

// ApplyInline answers unless the deadline of the session has to be extended first.
func (s inlineStore) ApplyInline(op *cache.Op, r *cache.Result) bool {
	if s.l.closed {
		return false
	}
	h := s.l.h
	w := h.w
	done := s.l.embedded(op, r)
	if done {
		w.counts.Ops[op.Kind]++
		w.counts.Modes[op.Mode]++
		w.counts.Results[r.Status]++
		s.l.gave(w.key(op.Key), r)
		h.learns(op, r)
		w.say(w.key(op.Key), "inline: %v %v %d: %v base %d", op.Kind, op.Mode, op.Token, r.Status, r.Base)
	}
	return done
}

func (l *link) openEmbedded() {
	h := l.h
	s := &l.session
	s.held = make(map[string]uint64)
	s.mode = make(map[string]cache.Mode)
	s.wait = make(map[string]bool)
	s.permits = make(map[string]map[uint64]bool)
	s.id = 1
	if left := l.s.saved.until - h.boot(); left > 0 {
		l.after(left+ms, func() {
			for _, k := range h.w.all() {
				l.freed(k.name)
			}
		})
	}
}

var errGrace = errors.New("waiting out the validity stated before the restart")

func (l *link) grace() bool { return l.session.until == 0 && l.h.boot() < l.s.saved.until }

// fresh reports whether the session lasts long enough for a grant.
func (l *link) fresh() bool { return l.session.until-l.h.boot() > l.h.w.p.Session/3 }

// embedded does one op, or nothing if the deadline of the session has to be extended first.
func (l *link) embedded(op *cache.Op, r *cache.Result) bool {
	*r = cache.Result{Left: -1}
	s := &l.session
	if s.until != 0 && l.h.boot() >= s.until { // nobody relies on it any more
		if op.Kind != cache.OpRelease && op.Kind != cache.OpWithdraw {
			return false
		}
		l.expireEmbedded()
	}
	if op.Mode == cache.Permit {
		return l.embeddedPermit(op, r)
	}
	got, held := s.held[op.Key]
	mine := held && got == op.Token
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		if l.grace() || held && !mine {
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
		if !l.fresh() {
			return false
		}
		s.held[op.Key], s.mode[op.Key] = op.Token, op.Mode
		delete(s.wait, op.Key)
		*r = cache.Result{Status: cache.Granted, Base: l.nextBase(op.Floor), Session: s.until,
			SessionNo: uint64(s.id)}
	case cache.OpRelease, cache.OpWithdraw:
		r.Status = cache.Done
		if mine {
			delete(s.held, op.Key)
			l.freed(op.Key)
		} else if op.Kind == cache.OpRelease {
			r.Status = cache.NotHeld
		}
	case cache.OpRenew, cache.OpDowngrade:
		if !mine {
			r.Status = cache.NotHeld
			return true
		}
		if !l.fresh() {
			return false
		}
		*r = cache.Result{Status: cache.Done, Session: s.until, SessionNo: uint64(s.id)}
		if op.Kind == cache.OpDowngrade {
			s.mode[op.Key] = cache.Shared
		} else if op.Rebase {
			r.Base = l.nextBase(op.Floor)
			l.h.w.counts.Tallies[rebases]++
		}
	case cache.OpPeek:
		r.Status = cache.Done
		if l.grace() {
			r.Status, r.Err = cache.Refused, errGrace
		} else if held {
			*r = cache.Result{Status: cache.Busy, Mode: s.mode[op.Key], Left: s.until - l.h.boot()}
		}
	}
	return true
}

func (l *link) nextBase(floor uint64) uint64 {
	saved := &l.s.saved
	saved.base = max(saved.base, floor, uint64(l.s.clock()/us)) + 1
	return saved.base
}

// freed tells the daemon that a key has become free for which it queues.
func (l *link) freed(key string) {
	if l.session.wait[key] {
		delete(l.session.wait, key)
		x := upstream.Hint{Kind: cache.HintAvailable, Key: key}
		if l.h.w.key(key).permits > 0 {
			x.Mode = cache.Permit
		}
		l.after(l.h.w.between(0, ms), func() { l.hint(x) })
	}
}

// disk does ops that had to wait until the deadline of the session was extended.
func (l *link) disk(ops []*cache.Op, res []*cache.Result) {
	for i, op := range ops {
		if l.embedded(op, res[i]) {
			continue
		}
		l.advance()
		if !l.embedded(op, res[i]) {
			*res[i] = cache.Result{Status: cache.Refused, Left: -1, Err: errGrace}
		}
	}
}

// advance extends the session's deadline, on the disk first.
func (l *link) advance() {
	h, s := l.h, &l.session
	if l.grace() {
		return
	}
	if s.until != 0 && h.boot() >= s.until {
		l.expireEmbedded()
	}
	l.s.saved.until = h.boot() + h.w.p.Session
	s.until = l.s.saved.until
	news := upstream.Session{No: uint64(s.id), Until: s.until}
	l.at(h.w.now, func() { h.eng.StoreSession(l.storeLane, news) })
	s.tries++
	try := s.tries
	l.after(h.w.p.Session/3+h.w.between(0, 5*ms), func() { l.extend(try) })
}

// extend extends the deadline while anything is held.
func (l *link) extend(try int) {
	h, s := l.h, &l.session
	switch {
	case s.tries != try:
	case h.w.now < l.s.paused: // the disk is slow
		l.after(l.s.paused-h.w.now, func() { l.extend(try) })
	case len(s.held)+len(s.permits) > 0:
		l.advance()
	default:
		s.until, l.s.saved.until = 0, 0
	}
}

func (l *link) expireEmbedded() {
	l.session.until = 0
	l.session.id++
	clear(l.session.held)
	clear(l.session.permits)
	for _, k := range l.h.w.all() {
		l.freed(k.name)
	}
}
