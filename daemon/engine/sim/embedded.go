package sim

import (
	"errors"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// This file has the store inside the daemon, as upstream/embedded implements it. The deadline of
// its session is on the disk before it is stated. After a crash, the store grants nothing until the
// deadline on the disk has passed.

// onDisk is the state that survives the daemon.
type onDisk struct {
	until int64
	base  uint64
	kept  []leftLease
}

// leftLease is a lease that is kept although the daemon that requested it has ended.
type leftLease struct {
	key   string
	mode  cache.Mode
	until int64 // by the host's clock
}

// keptToken is the token of a lease that is on the disk.
type keptToken struct {
	key    string
	token  uint64
	permit bool
}

func tokenOf(op *cache.Op) keptToken {
	return keptToken{op.Key, op.Token, op.Mode == cache.Permit}
}

type inlineStore struct{ l *link }

// ApplyInline answers unless the deadline of the session has to be extended first.
func (s inlineStore) ApplyInline(op *cache.Op, r *cache.Result) bool {
	if s.l.closed {
		return false
	}
	h := s.l.h
	w := h.w
	done := s.l.embedded(op, r, false)
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
	s.kept = make(map[keptToken]int64)
	s.left = l.s.saved.kept
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

// embedded does one op, or nothing if the deadline of the session has to be extended first, or the
// lease written to the disk. written says that it has just been.
func (l *link) embedded(op *cache.Op, r *cache.Result, written bool) bool {
	*r = cache.Result{Left: -1}
	s := &l.session
	if s.until != 0 && l.h.boot() >= s.until { // no client relies on its leases any more
		if op.Kind != cache.OpRelease && op.Kind != cache.OpWithdraw {
			return false
		}
		l.expireEmbedded()
	}
	if op.Mode == cache.Permit {
		return l.embeddedPermit(op, r, written)
	}
	got, held := s.held[op.Key]
	mine := held && got == op.Token
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		if taken := held && !mine || l.leftBy(op.Key, op.Mode) > 0; l.grace() || taken {
			if op.Kind == cache.OpJoin {
				s.wait[op.Key] = true
				r.Status = cache.Queued
			} else if taken && !l.grace() {
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
			l.unkeep(op)
			l.freed(op.Key)
		} else if op.Kind == cache.OpRelease {
			r.Status = cache.NotHeld
		}
	case cache.OpRenew, cache.OpDowngrade:
		if !mine {
			r.Status = cache.NotHeld
			return true
		}
		if !l.fresh() || !written && l.asksToKeep(op) {
			return false
		}
		*r = cache.Result{Status: cache.Done, Session: s.until, SessionNo: uint64(s.id)}
		if op.Kind == cache.OpDowngrade {
			s.mode[op.Key] = cache.Shared
			l.rewriteSoon()
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
		} else if l.leftBy(op.Key, cache.Exclusive) > 0 {
			*r = cache.Result{Status: cache.Busy, Left: -1}
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

// leftBy returns the number of leases that an earlier daemon has left and that exclude the mode.
func (l *link) leftBy(key string, mode cache.Mode) (n int) {
	for _, x := range l.session.left {
		if x.key == key && x.until > l.h.boot() && (x.mode == cache.Permit) == (mode == cache.Permit) &&
			(mode != cache.Shared || x.mode != cache.Shared) {
			n++
		}
	}
	return n
}

// asksToKeep reports whether the lease of op has to be on the disk for longer than it is.
func (l *link) asksToKeep(op *cache.Op) bool {
	return op.Kind == cache.OpRenew && op.Stated != 0 &&
		l.session.kept[tokenOf(op)] < cache.LeaseDeadline(l.h.boot(), int64(op.TTL))
}

// keep writes the leases for which ops asks to the disk.
func (l *link) keep(ops []*cache.Op) {
	s := &l.session
	for _, op := range ops {
		held := s.held[op.Key] == op.Token
		if op.Mode == cache.Permit {
			held = s.permits[op.Key][op.Token]
		}
		if held && l.asksToKeep(op) {
			s.kept[tokenOf(op)] = cache.LeaseDeadline(l.h.boot(), int64(op.TTL))
		}
	}
	l.rewrite(0)
}

// unkeep records that a lease has been released. Until the disk is written, a restart keeps the key
// closed for longer than necessary.
func (l *link) unkeep(op *cache.Op) {
	if l.session.kept[tokenOf(op)] != 0 {
		delete(l.session.kept, tokenOf(op))
		l.rewriteSoon()
	}
}

func (l *link) rewriteSoon() {
	if len(l.session.kept)+len(l.s.saved.kept) > 0 {
		l.after(5*ms, func() { l.rewrite(0) })
	}
}

// rewrite writes the kept leases to the disk. The leases of this daemon last at least until
// atLeast.
func (l *link) rewrite(atLeast int64) {
	s, now := &l.session, l.h.boot()
	all := slices.Clone(s.left)
	for id, until := range s.kept {
		mode := s.mode[id.key]
		if id.permit {
			mode = cache.Permit
		}
		if until > now {
			all = append(all, leftLease{id.key, mode, max(until, atLeast)})
		}
	}
	l.s.saved.kept = slices.DeleteFunc(all, func(x leftLease) bool { return x.until <= now })
}

// endEmbedded is the store's orderly end. A restart has to wait for the deadline of the session
// only if that concerns leases which are not on the disk.
func (l *link) endEmbedded() {
	s, n := &l.session, 0
	for _, until := range s.kept {
		if until > l.h.boot() {
			n++
		}
	}
	held := len(s.held)
	for _, tokens := range s.permits {
		held += len(tokens)
	}
	if l.grace() || n != held {
		l.rewrite(0)
		return
	}
	l.rewrite(s.until)
	l.s.saved.until = 0
}

// disk does ops that had to wait until the deadline of the session was extended, or until their
// leases were written to the disk.
func (l *link) disk(ops []*cache.Op, res []*cache.Result) {
	kept := false
	for i, op := range ops {
		if l.embedded(op, res[i], kept) {
			continue
		}
		if !kept && l.asksToKeep(op) {
			l.keep(ops)
			kept = true
		}
		l.advance()
		if !l.embedded(op, res[i], kept) {
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
	l.rewrite(0)
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
		l.rewrite(0)
		s.until, l.s.saved.until = 0, 0
	}
}

func (l *link) expireEmbedded() {
	l.session.until = 0
	l.session.id++
	clear(l.session.held)
	clear(l.session.permits)
	clear(l.session.kept)
	for _, k := range l.h.w.all() {
		l.freed(k.name)
	}
}
