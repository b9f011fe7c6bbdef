package sim

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

// This file has semaphores: their checks, and how the stores keep them.

// all returns all locks and semaphores.
func (w *World) all() []*key { return w.everything }

// unique checks that no permit has the fence of another.
func (w *World) unique(h *hold) {
	for _, s := range h.c.w.orders(h.at) {
		at := fenceAt{s, h.fence}
		if o := h.key.fences[at]; o != nil && o != h {
			if waives(o, h) || waives(h, o) {
				w.counts.Tallies[waivedFence]++
			} else {
				w.fail("fence order", h.key.name, "clients %d and %d have both had fence %d·%d", o.c.id, h.c.id,
					h.fence>>10, h.fence&1023)
			}
		}
		h.key.fences[at] = h
	}
}

// checkPermits checks that clients do not believe in more permits than exist.
func (w *World) checkPermits(k *key) {
	var believed []*hold
	for _, h := range k.holds {
		if h.believed() {
			believed = append(believed, h)
		}
	}
	for _, h := range believed {
		of := func(same func(o *hold) bool) {
			w.checkPermitsOf(k, slices.DeleteFunc(slices.Clone(believed), func(o *hold) bool { return !same(o) }))
		}
		for _, s := range h.at.leaves {
			of(func(o *hold) bool { return slices.Contains(o.at.leaves, s) })
		}
		if w.p.Move {
			of(func(o *hold) bool { return !o.degraded })
		}
		of(h.sameDaemon)
	}
}

// checkPermitsOf checks the permits that one store, or one daemon, has granted.
func (w *World) checkPermitsOf(k *key, believed []*hold) {
	if len(believed) <= k.permits || w.failure != nil {
		return
	}
	// Permits that the store has forgotten do not count if the others are newer.
	standing := slices.DeleteFunc(slices.Clone(believed), func(o *hold) bool {
		return slices.ContainsFunc(believed, func(young *hold) bool {
			return young != o && waives(o, young)
		})
	})
	if len(standing) <= k.permits {
		w.counts.Tallies[waivedCrowd]++
		return
	}
	for _, h := range standing {
		w.say(k, "client %d has a permit: fence %d·%d, %d ms left", h.c.id, h.fence>>10, h.fence&1023,
			h.valid-h.c.clock()/ms)
	}
	w.fail("two holders", k.name, "%d clients have permits, and there are %d",
		len(standing), k.permits)
}

// redisPermits is one semaphore of the model of Redis.
type redisPermits struct {
	held  []reader // sorted by their ends
	queue []reader // in the order in which they joined
	limit int      // the number of permits that the last request has stated
}

// permitsOf returns the present state of a semaphore, without expired entries.
func (s *script) permitsOf(name string) *redisPermits {
	p := s.m.permits[name]
	if p == nil {
		p = &redisPermits{}
		s.m.permits[name] = p
	}
	over := func(x reader) bool { return x.ends <= s.now }
	p.held = slices.DeleteFunc(p.held, over)
	p.queue = slices.DeleteFunc(p.queue, over)
	return p
}

func (s *script) runPermits(ops []*cache.Op, res []*cache.Result) {
	base := uint64(0)
	if k := ops[0].Kind; k == cache.OpTry || k == cache.OpJoin ||
		slices.ContainsFunc(ops, func(op *cache.Op) bool { return op.Rebase }) {
		base = s.m.reserve(len(ops), ops)
	}
	for i, op := range ops {
		p, t, r := s.permitsOf(op.Key), token{s.me, op.Token}, res[i]
		switch op.Kind {
		case cache.OpTry, cache.OpJoin:
			s.takePermit(p, op, r, t, base+uint64(i))
		case cache.OpRelease, cache.OpWithdraw:
			r.Status = cache.Done
			if !drop(&p.held, t) && !drop(&p.queue, t) && op.Kind == cache.OpRelease {
				r.Status = cache.NotHeld
				continue
			}
			s.wakePermits(op.Key, p)
		case cache.OpRenew:
			if at(p.held, t) < 0 {
				r.Status = cache.NotHeld
				continue
			}
			p.keep(t, s.now+millisOf(op))
			r.Status, r.Contended = cache.Done, p.contended(s.me)
			if op.Rebase {
				r.Base = base + uint64(i)
			}
		case cache.OpPeek:
			r.Status, r.Left = cache.Done, -1
			if len(p.held) > 0 {
				*r = cache.Result{Status: cache.Busy, Mode: cache.Permit,
					Left: max(0, p.held[0].ends-s.now) * ms}
			}
		}
	}
}

func at(rs []reader, t token) int {
	return slices.IndexFunc(rs, func(x reader) bool { return x.t == t })
}

func drop(rs *[]reader, t token) bool {
	i := at(*rs, t)
	if i >= 0 {
		*rs = slices.Delete(*rs, i, i+1)
	}
	return i >= 0
}

// keep gives t a permit until ends, or a longer one.
func (p *redisPermits) keep(t token, ends int64) {
	if i := at(p.held, t); i >= 0 {
		ends = max(ends, p.held[i].ends)
		p.held = slices.Delete(p.held, i, i+1)
	}
	p.held = append(p.held, reader{t: t, ends: ends})
	slices.SortFunc(p.held, func(a, b reader) int {
		return cmp.Or(cmp.Compare(a.ends, b.ends), cmp.Compare(a.t.inst, b.t.inst),
			cmp.Compare(a.t.n, b.t.n))
	})
}

// contended reports whether another daemon queues and cannot have a permit now.
func (p *redisPermits) contended(me uint32) bool {
	free := max(0, p.limit-len(p.held))
	return slices.ContainsFunc(p.queue[min(free, len(p.queue)):], func(x reader) bool {
		return x.t.inst != me
	})
}

func (s *script) takePermit(p *redisPermits, op *cache.Op, r *cache.Result, t token, base uint64) {
	p.limit = int(op.Limit)
	before := at(p.queue, t)
	if before < 0 {
		before = len(p.queue)
	}
	if at(p.held, t) >= 0 || len(p.held)+before < p.limit {
		drop(&p.queue, t)
		p.keep(t, s.now+millisOf(op))
		*r = cache.Result{Status: cache.Granted, Base: base, Contended: p.contended(s.me)}
		return
	}
	left := int64(-1)
	if len(p.held) > 0 {
		left = max(0, p.held[0].ends-s.now) * ms
	}
	if op.Kind == cache.OpTry {
		if drop(&p.queue, t) {
			s.wakePermits(op.Key, p)
		}
		*r = cache.Result{Status: cache.Busy, Left: left}
		return
	}
	ends := s.now + s.m.lease
	s.m.mark(ends)
	if i := at(p.queue, t); i >= 0 {
		p.queue[i].ends = ends
	} else {
		p.queue = append(p.queue, reader{t: t, ends: ends})
		for _, x := range p.held {
			if x.t.inst != s.me {
				s.m.hint(x.t.inst, cache.HintContended, op.Key)
			}
		}
	}
	s.wakePermits(op.Key, p) // earlier waiters may have missed their hints
	*r = cache.Result{Status: cache.Queued, Left: left}
}

// wakePermits sends hints to the daemons that can have a permit now.
func (s *script) wakePermits(name string, p *redisPermits) {
	for i := range min(len(p.queue), max(0, p.limit-len(p.held))) {
		s.m.hint(p.queue[i].t.inst, cache.HintAvailable, name)
	}
}

// isSettled reports whether a late request must not bring t back.
func (m *etcdModel) isSettled(op *cache.Op, t token) bool {
	if op.Mode == cache.Permit {
		return m.gone[t]
	}
	return t.n <= m.settled[grave{t.inst, op.Key}]
}

func (m *etcdModel) settle(op *cache.Op, t token) {
	if op.Mode == cache.Permit {
		m.gone[t] = true
		return
	}
	g := grave{t.inst, op.Key}
	m.settled[g] = max(m.settled[g], t.n)
}

// contended reports whether another entry queues behind the entry at i. For a semaphore, it has to
// be an entry of another daemon.
func (m *etcdModel) contended(key string, i int) bool {
	es := m.keys[key]
	if es[i].mode != cache.Permit {
		return slices.ContainsFunc(es[i+1:], func(e *entry) bool { return !e.brief })
	}
	return slices.ContainsFunc(es[min(len(es), m.limits[key]):], func(e *entry) bool {
		return e.t.inst != es[i].t.inst
	})
}

// embeddedPermit does one op about a permit, as embedded does.
func (l *link) embeddedPermit(op *cache.Op, r *cache.Result, written bool) bool {
	s := &l.session
	held := s.permits[op.Key]
	mine := held[op.Token]
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		if l.grace() || len(held)+l.leftBy(op.Key, op.Mode) >= int(op.Limit) && !mine {
			switch {
			case op.Kind == cache.OpJoin:
				s.wait[op.Key] = true
				r.Status = cache.Queued
			case l.grace():
				r.Status, r.Err = cache.Refused, errGrace
			default:
				r.Status = cache.Busy
			}
			return true
		}
		if !l.fresh() {
			return false
		}
		if held == nil {
			held = make(map[uint64]bool)
			s.permits[op.Key] = held
		}
		held[op.Token] = true
		*r = cache.Result{Status: cache.Granted, Base: l.nextBase(op.Floor), Session: s.until,
			SessionNo: uint64(s.id)}
	case cache.OpRelease, cache.OpWithdraw:
		r.Status = cache.Done
		if mine {
			if delete(held, op.Token); len(held) == 0 {
				delete(s.permits, op.Key)
			}
			l.unkeep(op)
			l.freed(op.Key)
		} else if op.Kind == cache.OpRelease {
			r.Status = cache.NotHeld
		}
	case cache.OpRenew:
		if !mine {
			r.Status = cache.NotHeld
			return true
		}
		if !l.fresh() || !written && l.asksToKeep(op) {
			return false
		}
		*r = cache.Result{Status: cache.Done, Session: s.until, SessionNo: uint64(s.id)}
		if op.Rebase {
			r.Base = l.nextBase(op.Floor)
			l.h.w.counts.Tallies[rebases]++
		}
	case cache.OpPeek:
		r.Status = cache.Done
		switch {
		case l.grace():
			r.Status, r.Err = cache.Refused, errGrace
		case len(held)+l.leftBy(op.Key, op.Mode) > 0:
			*r = cache.Result{Status: cache.Busy, Mode: cache.Permit, Left: s.until - l.h.boot()}
		}
	}
	return true
}
