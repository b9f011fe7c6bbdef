package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// OpenSuccessor is Open for a Store that continues the Store of another process. It makes no
// session. Arrive has to be called before any other method.
func OpenSuccessor(ctx context.Context, cfg Config) (*Store, error) {
	s, err := newStore(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*cfg.Timeout)
	defer cancel()
	if err := s.checkServer(ctx); err != nil && !errors.Is(err, upstream.ErrDown) {
		return nil, errors.Join(fmt.Errorf("open store: %w", err), s.client.close())
	}
	return s, nil
}

// Identity is empty.
func (s *Store) Identity() string { return "" }

// Leave returns the session and the keys under it. Both processes keep the session alive for a
// moment, which does no harm. Until Stay, this one does not end the session: if it is too slow to
// keep the session alive, the other process may have done so.
func (s *Store) Leave() ([]byte, error) {
	s.turn <- struct{}{}
	m := &stateCoder{Coder: new(cache.Coder), s: s}
	m.code(s.cur.Load())
	return m.B, nil
}

// Stay ends a Leave.
func (s *Store) Stay() { <-s.turn }

// Arrive restores what Leave returned. From the call of begin on, this Store keeps the session
// alive.
func (s *Store) Arrive(state []byte) (begin func(), err error) {
	m := &stateCoder{Coder: &cache.Coder{B: state, Reading: true}, s: s}
	n := m.code(nil)
	if m.Err != nil {
		return nil, fmt.Errorf("etcd: %w", m.Err)
	}
	return func() { s.continueSession(n) }, nil
}

// continueSession starts the goroutines. n is the session that continues, nil if there is none.
func (s *Store) continueSession(n *session) {
	if n != nil {
		s.sessions.Send(upstream.Session{No: n.no, Until: n.until.Load()})
	} else if last := s.last.Load(); last > 0 { // the other process may not have noticed
		s.sessions.Send(upstream.Session{No: last, Lost: true})
	}
	// The session is kept alive at once. Its key is written again, so that no request of the other
	// process that is still in flight takes a lock.
	s.wake()
	s.run(n)
}

// stateCoder writes or reads a session and its lock keys.
type stateCoder struct {
	*cache.Coder
	s *Store
	n *session
}

// code writes or reads the session. It returns nil if there is none, or if the last one was lost.
func (m *stateCoder) code(n *session) *session {
	s, c := m.s, m.Coder
	number(c, &s.last)
	number(c, &s.granted)
	high := s.high.Load()
	cache.Num(c, &high)
	raise(s.high, high)
	number(c, &s.maxOps)
	number(c, &s.maxBytes)
	has := n != nil && !n.lost.Load()
	if c.Bool(&has); !has {
		return nil
	}
	if m.Reading {
		n = &session{}
	}
	m.n = n
	cache.Num(c, &n.no)
	cache.Num(c, &n.lease)
	c.String(&n.key)
	cache.Num(c, &n.cluster)
	number(c, &n.until)
	number(c, &n.fence)
	if m.Reading {
		s.cur.Store(n)
	}
	m.table()
	return n
}

// number writes or reads an atomic number.
func number[T int64 | uint64](c *cache.Coder, x interface {
	Load() T
	Store(T)
}) {
	v := x.Load()
	if cache.Num(c, &v); c.Reading {
		x.Store(v)
	}
}

// table writes or reads the keys that exist under the session, or may exist.
func (m *stateCoder) table() {
	t, c := &m.s.lockKeys, m.Coder
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Collect(maps.Values(t.byLock))
	slices.SortFunc(all, func(a, b *lockKey) int {
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.lock, b.lock))
	})
	cache.List(c, &all, func(g **lockKey) {
		if m.Reading {
			*g = &lockKey{sess: m.n}
		}
		m.lockKey(*g)
		cache.Num(c, &(*g).mode)
		c.Bool(&(*g).held)
		c.String(&(*g).dir)
		c.String(&(*g).key)
		if m.Reading {
			t.putLocked(*g)
		}
	})
	byKey := func(a, b *sem) int { return cmp.Compare(a.key, b.key) }
	sems := slices.SortedFunc(maps.Values(t.sems), byKey)
	sems = slices.DeleteFunc(sems, func(x *sem) bool { return x.sess != m.n })
	cache.List(c, &sems, m.semLocked)
	var unresolved []acquireID
	for d := range t.unresolved {
		unresolved = append(unresolved, d)
	}
	cache.List(c, &unresolved, func(d *acquireID) {
		fence := t.unresolved[*d]
		c.String(&d.lock)
		cache.Num(c, &d.token)
		c.Bool(&d.permit)
		cache.Num(c, &fence)
		t.unresolved[*d] = fence
	})
}

// lockKey writes or reads the fields that keys of locks and of permits have in common.
func (m *stateCoder) lockKey(g *lockKey) {
	c := m.Coder
	c.String(&g.lock)
	cache.Num(c, &g.token)
	cache.Num(c, &g.rev)
	c.Bool(&g.leaving)
	cache.Num(c, &g.since)
	c.String(&g.pred)
	cache.Num(c, &g.predRev)
	cache.Num(c, &g.predMod)
}

func (m *stateCoder) semLocked(p **sem) {
	c := m.Coder
	var key string
	if !m.Reading {
		key = (*p).key
	}
	if c.String(&key); m.Reading {
		*p = m.s.semLocked(m.n, key)
	}
	x := *p
	cache.Num(c, &x.limit)
	cache.Num(c, &x.seen)
	slots := slices.Clone(x.slots)
	cache.List(c, &slots, func(g **lockKey) {
		there := *g != nil
		c.Bool(&there)
		if m.Reading {
			*g = x.addLocked(0) // in the order of the slots
			delete(x.tokens, 0)
		}
		if there {
			m.permitLocked(x, *g)
		}
	})
	for i, g := range slots {
		if m.Reading && x.tokens[g.token] != g { // the slot was free
			x.slots[i] = nil
			x.free = append(x.free, i)
		}
	}
}

func (m *stateCoder) permitLocked(x *sem, g *lockKey) {
	t, c, p := &m.s.lockKeys, m.Coder, g.permit
	held := g.held
	m.lockKey(g)
	c.Bool(&held)
	c.Bool(&p.queued)
	c.Bool(&p.uncertain)
	cache.Num(c, &p.limit)
	if !m.Reading {
		return
	}
	p.value = permitValue(g.token)
	x.tokens[g.token] = g
	uncertain := p.uncertain
	switch {
	case held:
		t.setHeldLocked(g, g.rev, m.s.clock())
	case p.queued:
		pred := g.pred
		g.pred = "" // it has no watch yet
		t.setWaitingLocked(g, pred, g.predRev)
	}
	p.uncertain = uncertain
}
