package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// etcdModel is a linearizable store whose leases depend on sessions. Each lease and each place in a
// queue is an entry of the key, and the order of the entries decides.
type etcdModel struct {
	w        *World
	s        *simStore
	sessions map[int]*etcdSession
	last     int // number of the session made last
	revision uint64
	keys     map[string][]*entry
	settled  map[grave]uint64 // the highest settled token
	// For semaphores: the number of their permits, as stated last, and tokens that are settled.
	limits map[string]int
	gone   map[token]bool
}

// grave names an instance that has settled tokens of a key. A late request cannot bring such a
// token back: the model does at once what the sweep of DESIGN does after a while.
type grave struct {
	inst uint32
	key  string
}

type etcdSession struct {
	ends int64 // on the store's clock
}

type entry struct {
	t       token
	session int
	mode    cache.Mode
	rev     uint64 // revision of the store that made it
	brief   bool   // a writer's short-lived entry
}

func newEtcdModel(s *simStore) *etcdModel {
	return &etcdModel{w: s.w, s: s, sessions: make(map[int]*etcdSession),
		keys: make(map[string][]*entry), revision: 100 + uint64(s.no)<<32,
		settled: make(map[grave]uint64),
		limits:  make(map[string]int), gone: make(map[token]bool)}
}

var errNoLease = errors.New("requested lease not found")

func (m *etcdModel) run(inst uint32, session int, ops []*cache.Op, res []*cache.Result) {
	alive := m.alive(session)
	for i, op := range ops {
		r, t := res[i], token{inst, op.Token}
		mine := slices.IndexFunc(m.keys[op.Key], func(e *entry) bool { return e.t == t })
		switch op.Kind {
		case cache.OpTry, cache.OpJoin:
			if !alive || m.isSettled(op, t) {
				r.Status, r.Err = cache.Refused, errNoLease
				continue
			}
			if op.Mode == cache.Permit {
				m.limits[op.Key] = int(op.Limit)
			}
			m.acquire(session, op, r, t, mine)
		case cache.OpRelease, cache.OpWithdraw:
			r.Status = cache.Done
			m.settle(op, t)
			if mine >= 0 {
				m.remove(op.Key, mine)
			} else if op.Kind == cache.OpRelease {
				r.Status = cache.NotHeld
			}
		case cache.OpRenew, cache.OpDowngrade:
			if mine < 0 {
				r.Status = cache.NotHeld
				continue
			}
			r.Status, r.Contended = cache.Done, m.contended(op.Key, mine)
			if op.Kind == cache.OpDowngrade {
				m.keys[op.Key][mine].mode = cache.Shared
				m.wake(op.Key)
			} else if op.Rebase {
				r.Base = m.rise(op.Floor)
			}
		case cache.OpPeek:
			r.Status = cache.Done
			if es := m.keys[op.Key]; len(es) > 0 {
				*r = cache.Result{Status: cache.Busy, Mode: es[0].mode, Left: -1}
			}
		}
	}
}

func (m *etcdModel) rise(floor uint64) uint64 {
	m.revision = max(m.revision, floor) + 1
	return m.revision
}

func (m *etcdModel) acquire(session int, op *cache.Op, r *cache.Result, t token, mine int) {
	if mine < 0 {
		if op.Kind == cache.OpTry && !m.free(op.Key, op.Mode, op.Limit) {
			*r = cache.Result{Status: cache.Busy, Contended: true, Left: -1}
			m.settle(op, t)
			return
		}
		mine = len(m.keys[op.Key])
		m.keys[op.Key] = append(m.keys[op.Key], &entry{t, session, op.Mode, m.rise(0), op.ShortLived &&
			op.Mode == cache.Exclusive})
	}
	e := m.keys[op.Key][mine]
	if !m.has(op.Key, mine) {
		r.Status = cache.Queued
		what := cache.HintContended
		if e.brief {
			what = cache.HintTried
		}
		for i, o := range m.keys[op.Key][:mine] {
			if m.has(op.Key, i) && (e.mode != cache.Permit || o.t.inst != t.inst) {
				m.w.hint(o.t.inst, what, op.Key)
			}
		}
		return
	}
	*r = cache.Result{Status: cache.Granted, Base: e.rev, Contended: m.contended(op.Key, mine)}
	if m.s.rebase {
		r.Base = m.rise(op.Floor)
	}
}

// free reports whether no entry has the key or queues for it. For a shared request, shared entries
// do not count.
func (m *etcdModel) free(key string, mode cache.Mode, limit uint32) bool {
	if mode == cache.Permit {
		return len(m.keys[key]) < int(limit)
	}
	return !slices.ContainsFunc(m.keys[key], func(e *entry) bool {
		return mode == cache.Exclusive || e.mode == cache.Exclusive
	})
}

// has reports whether the entry at i has the key. Otherwise it queues.
func (m *etcdModel) has(key string, i int) bool {
	es := m.keys[key]
	switch es[i].mode {
	case cache.Exclusive:
		return i == 0
	case cache.Permit:
		return i < m.limits[key]
	}
	return !slices.ContainsFunc(es[:i], func(e *entry) bool { return e.mode == cache.Exclusive })
}

func (m *etcdModel) remove(key string, i int) {
	m.keys[key] = slices.Delete(m.keys[key], i, i+1)
	m.wake(key)
}

func (m *etcdModel) wake(key string) {
	for i, e := range m.keys[key] {
		if !m.has(key, i) {
			break
		}
		m.w.hint(e.t.inst, cache.HintAvailable, key)
	}
}

// alive reports whether the store knows the session. It first ends the session if its time is up.
func (m *etcdModel) alive(id int) bool {
	s := m.sessions[id]
	if s == nil {
		return false
	}
	if m.s.clock() >= s.ends {
		m.endSession(id)
		return false
	}
	return true
}

// endSession ends a session, and removes its entries.
func (m *etcdModel) endSession(id int) {
	delete(m.sessions, id)
	for _, k := range m.w.all() {
		n := len(m.keys[k.name])
		m.keys[k.name] = slices.DeleteFunc(m.keys[k.name], func(e *entry) bool {
			if e.session == id {
				m.w.hint(e.t.inst, cache.HintGone, k.name) // its daemon watches the entry
			}
			return e.session == id
		})
		if len(m.keys[k.name]) < n {
			m.wake(k.name)
		}
	}
}

// storeSession is the driver's record of the daemon's session.
type storeSession struct {
	id    int   // 0 when there is none
	until int64 // its deadline on the host's clock
	tries int   // how often the driver has renewed it: only the latest renewal schedules the next
	// The following fields are of the embedded store alone.
	held    map[string]uint64 // the token that holds each lock
	mode    map[string]cache.Mode
	wait    map[string]bool            // keys for which the daemon queues
	permits map[string]map[uint64]bool // the tokens that hold each semaphore; no map is empty
	kept    map[keptToken]int64        // leases on the disk, with their ends there
	left    []leftLease                // leases that an earlier daemon has left
}

func (l *link) openSession() {
	switch l.s.kind {
	case likeEtcd:
		l.keepAlive()
		l.sweep()
	case likeEmbedded:
		l.openEmbedded()
	}
	l.h.w.owner[l.inst] = l
}

func (l *link) closeSession() { delete(l.h.w.owner, l.inst) }

// keepAlive opens a store session, or renews the present one, and repeats that from time to time.
func (l *link) keepAlive() {
	h, w := l.h, l.h.w
	l.session.tries++
	try, id, sent, net := l.session.tries, l.session.id, h.clock(), l.s.net
	again := func(d int64) {
		l.after(d, func() {
			if l.session.tries == try {
				l.keepAlive()
			}
		})
	}
	again(w.p.Session / 3)
	x := l.newFate()
	if x.kind == lostRequest || l.isCutOff() {
		again(w.p.Session / 8)
		return
	}
	arrive := h.departs() + x.there
	var serve func()
	serve = func() {
		if l.s.net != net {
			return
		}
		if w.now < l.s.paused {
			w.at(l.s.paused+w.between(0, ms), serve)
			return
		}
		if l.closed && id == 0 {
			return // the connection is closed
		}
		got := l.s.etcd.keep(id)
		if x.kind == lostReply || x.kind == cut {
			return
		}
		l.after(x.back, func() { l.kept(id, got, sent) })
	}
	w.at(arrive, serve)
}

// keep makes a session, or extends one. It returns 0 if the session has ended.
func (m *etcdModel) keep(id int) int {
	ends := m.s.clock() + m.w.p.Session
	if id == 0 {
		m.last++
		id = m.last
		m.sessions[id] = &etcdSession{}
		m.watch(id)
	} else if !m.alive(id) {
		return 0
	}
	m.sessions[id].ends = max(m.sessions[id].ends, ends)
	return id
}

// watch ends a session when its time is up, even if no request arrives.
func (m *etcdModel) watch(id int) {
	m.w.after(m.w.p.Session/2, func() {
		if m.alive(id) {
			m.watch(id)
		}
	})
}

// kept handles the store's answer to a renewal of the session.
func (l *link) kept(id, got int, sent int64) {
	h, s := l.h, &l.session
	if id != s.id {
		return // the answer is about an earlier session, or a second one was made instead of the first
	}
	if got == 0 {
		h.w.say(nil, "host %d has lost its session %d at %s", h.id, id, l.name)
		s.id, s.until = 0, 0
		l.news(upstream.Session{No: uint64(id), Lost: true})
		l.keepAlive()
		return
	}
	s.id = got
	s.until = max(s.until, cache.LeaseDeadline(sent, h.w.p.Session))
	l.news(upstream.Session{No: uint64(got), Until: s.until, TTL: time.Duration(h.w.p.Session)})
}

// confirmSession sets the session of an answer, as a driver does. That session may have ended
// since. A release needs no session, because it stays done even if the session ends.
func (l *link) confirmSession(f *flight, op *cache.Op, r *cache.Result) {
	if l.s.kind != likeEtcd || f.session == 0 || r.Status == cache.Done &&
		(op.Kind == cache.OpRelease || op.Kind == cache.OpWithdraw) {
		return
	}
	r.Session, r.SessionNo = f.until, uint64(f.session)
	if f.session == l.session.id {
		r.Session = l.session.until
	}
}
