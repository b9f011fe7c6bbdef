package engine

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// This file has the part of a snapshot for sessions.

// sessionTable writes or reads all sessions.
func (m *snapshotCoder) sessionTable() {
	if !m.Reading {
		m.sessions = m.e.Sessions()
		slices.SortFunc(m.sessions, func(a, b *Session) int {
			return cmp.Compare(a.core.ID, b.core.ID)
		})
	}
	cache.List(m.Coder, &m.sessions, func(s **Session) {
		var id uint64
		if !m.Reading {
			id = (*s).core.ID
		}
		cache.Num(m.Coder, &id)
		if m.Reading {
			*s = m.e.newSession(id, Peer{}, nil)
		}
		m.byID[id] = *s
		m.session(*s)
	})
	m.detached()
}

// detached writes or reads which users have detached holds.
func (m *snapshotCoder) detached() {
	m.e.mu.Lock()
	defer m.e.mu.Unlock()
	var uids []int
	if !m.Reading {
		uids = m.e.users.withDetached()
	}
	cache.List(m.Coder, &uids, func(uid *int) {
		cache.Num(m.Coder, uid)
		s := m.e.user(*uid).detached
		m.byID[s.core.ID] = s
	})
}

func (m *snapshotCoder) session(s *Session) {
	c := m.Coder
	for _, n := range []*int{&s.peer.PID, &s.peer.UID, &s.peer.GID} {
		cache.Num(c, n)
	}
	if m.Reading {
		m.e.addToUser(s)
	}
	cache.List(c, &s.peer.Groups, func(g *int) { cache.Num(c, g) })
	c.Bool(&s.peer.Watched)
	c.Bool(&s.greeted)
	cache.Num(c, &s.maxFrame)
	cache.Num(c, &s.began)
	heard, closing := s.heard.Load(), s.closing.Load()
	cache.Num(c, &heard)
	c.Bool(&closing)
	s.heard.Store(heard)
	s.closing.Store(closing)
	if s.greeted {
		var client string
		if !m.Reading {
			client = *s.client.Load()
		}
		if c.String(&client); m.Reading {
			s.client.Store(&client)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Bytes(&s.out)
	keepaliveAt := s.keepaliveAt
	if s.surveyed { // the next process begins the survey anew
		keepaliveAt = 0
	}
	for _, n := range []*int64{&s.floor, &keepaliveAt, &s.keepaliveEvery, &s.asked, &s.stated} {
		cache.Num(c, n)
	}
	c.Bool(&s.killed)
	cache.List(c, &s.multiAcquires, func(p **multiAcquire) {
		if m.Reading {
			*p = &multiAcquire{several: several{s: s}}
		}
		m.several(&(*p).several)
		m.multiAcquire(*p)
	})
	cache.List(c, &s.anyAcquires, func(p **anyAcquire) {
		if m.Reading {
			*p = &anyAcquire{several: several{s: s}}
		}
		m.several(&(*p).several)
		m.anyAcquire(*p)
	})
	if s.killed { // the daemon has ended the session or is about to: it gets no new holds
		s.core.Ended.Store(true)
	}
	if m.Reading {
		s.keepaliveAt = keepaliveAt
		m.e.nextKeepalive.Store(min(m.e.nextKeepalive.Load(), s.keepaliveAt))
	}
}

// several writes or reads the common part of an acquire of several keys.
func (m *snapshotCoder) several(x *several) {
	c := m.Coder
	x.mu.Lock()
	defer x.mu.Unlock()
	cache.Num(c, &x.id)
	cache.Num(c, &x.q.Owner)
	cache.Num(c, &x.q.Mode)
	cache.Num(c, &x.q.Wait)
	c.Bool(&x.q.Fixed)
	cache.Num(c, &x.began)
	cache.Num(c, &x.deadline)
	cache.List(c, &x.keys, c.Bytes)
	cache.List(c, &x.ttls, func(n *int64) { cache.Num(c, n) })
	cache.List(c, &x.cancel, func(n *uint64) { cache.Num(c, n) })
	if !m.Reading {
		return
	}
	x.q.Re = x.s.request(x.id)
	all := m.e.routes.Load()
	for _, k := range x.keys {
		x.classes = append(x.classes, routeFor(all, k).class)
	}
	if n := len(x.keys); n == 0 || len(x.ttls) != n {
		m.Fail(errUnderWay)
	}
}

func (m *snapshotCoder) multiAcquire(x *multiAcquire) {
	c := m.Coder
	x.mu.Lock()
	defer x.mu.Unlock()
	x.q.Re.InternalReply = x
	cache.Num(c, &x.tries)
	cache.List(c, &x.order, func(n *int) { cache.Num(c, n) })
	cache.List(c, &x.refusals, m.refusal)
	cache.List(c, &x.held, c.Bool)
	cache.List(c, &x.grants, func(g *protocol.Grant) {
		for _, n := range []*uint64{&g.Fence, &g.Deadline, &g.Left, &g.Count, &g.End} {
			cache.Num(c, n)
		}
		cache.Num(c, &g.Flags)
	})
	cache.Num(c, &x.at)
	cache.Num(c, &x.shard)
	c.Bool(&x.withdrawn)
	c.Bool(&x.lost)
	n := len(x.keys)
	if m.Reading && (len(x.order) != n || len(x.refusals) != n || len(x.held) != n ||
		len(x.grants) != n || x.at < 0 || x.at >= n || x.shard < 0 || x.shard >= shards) {
		m.Fail(errUnderWay)
	}
}

func (m *snapshotCoder) refusal(r *refusal) {
	cache.Num(m.Coder, &r.code)
	m.String(&r.text)
}

func (m *snapshotCoder) anyAcquire(x *anyAcquire) {
	c := m.Coder
	x.mu.Lock()
	defer x.mu.Unlock()
	decided := x.decided.Load()
	for _, b := range []*bool{&decided, &x.asking, &x.waiting, &x.granted, &x.concluded} {
		c.Bool(b)
	}
	x.decided.Store(decided)
	for _, n := range []*int{&x.start, &x.tried, &x.open, &x.decidedBy} {
		cache.Num(c, n)
	}
	cache.Num(c, &x.left)
	cache.List(c, &x.parts, c.Bool)
	cache.List(c, &x.refusals, m.refusal)
	n := len(x.keys)
	if m.Reading && (len(x.parts) != n || len(x.refusals) != n || x.start < 0 || x.start >= n ||
		x.tried < 0 || x.tried > n || x.decidedBy >= n) {
		m.Fail(errUnderWay)
	}
}
