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

var _ upstream.Mover = (*Store)(nil)

// OpenSuccessor is Open for a Store that continues the Store of another process. It makes no session, and Arrive has to
// be called before any other method.
func OpenSuccessor(ctx context.Context, cfg Config, opts ...Option) (*Store, error) {
	s, err := newStore(cfg, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*cfg.Timeout)
	defer cancel()
	if err := s.judge(ctx); err != nil && !errors.Is(err, upstream.ErrDown) {
		return nil, errors.Join(fmt.Errorf("open store: %w", err), s.client.close())
	}
	return s, nil
}

// Identity is empty.
func (s *Store) Identity() string { return "" }

// Leave returns the session and what stands under it. The session is kept alive until the process
// ends, by both for a moment, which does no harm.
func (s *Store) Leave() ([]byte, error) {
	m := &moving{Coder: new(cache.Coder), s: s}
	m.code(s.cur.Load())
	return m.B, nil
}

// Stay has nothing to do.
func (s *Store) Stay() {}

// Arrive takes in what Leave returned. The session is kept alive from begin on.
func (s *Store) Arrive(state []byte) (begin func(), err error) {
	m := &moving{Coder: &cache.Coder{B: state, Reading: true}, s: s}
	n := m.code(nil)
	if m.Err != nil {
		return nil, fmt.Errorf("etcd: %w", m.Err)
	}
	return func() { s.goOn(n) }, nil
}

// goOn starts the goroutines; n is the session that goes on, nil when there is none.
func (s *Store) goOn(n *session) {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if n != nil {
		s.publish(upstream.Session{No: n.no, Until: n.until.Load()})
	}
	s.wake() // it is kept alive at once, and nothing that the other process has sent takes a lock any more
	s.run(ctx, n)
}

// moving writes or reads a session and its lock keys.
type moving struct {
	*cache.Coder
	s *Store
	n *session
}

// code returns the session; nil when there is none, or the last one was lost.
func (m *moving) code(n *session) *session {
	s, c := m.s, m.Coder
	last, granted, high, most, bytes := s.last.Load(), s.granted.Load(), s.high.Load(), s.most.Load(), s.bytes.Load()
	cache.Num(c, &last)
	for _, v := range []*int64{&granted, &high, &most, &bytes} {
		cache.Num(c, v)
	}
	s.last.Store(last)
	s.granted.Store(granted)
	s.most.Store(most)
	s.bytes.Store(bytes)
	s.saw(high)
	has := n != nil && !n.lost.Load()
	if c.Bool(&has); !has {
		return nil
	}
	if m.Reading {
		n = &session{}
	}
	m.n = n
	until, fence := n.until.Load(), n.fence.Load()
	cache.Num(c, &n.no)
	cache.Num(c, &n.lease)
	c.String(&n.key)
	cache.Num(c, &n.cluster)
	cache.Num(c, &until)
	cache.Num(c, &fence)
	n.until.Store(until)
	n.fence.Store(fence)
	if m.Reading {
		s.cur.Store(n)
	}
	m.table()
	return n
}

// table is what stands under the session, or may.
func (m *moving) table() {
	t, c := &m.s.lockKeys, m.Coder
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Collect(maps.Values(t.byLock))
	slices.SortFunc(all, func(a, b *lockKey) int { return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.lock, b.lock)) })
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
	sems := slices.SortedFunc(maps.Values(t.sems), func(a, b *sem) int { return cmp.Compare(a.key, b.key) })
	sems = slices.DeleteFunc(sems, func(x *sem) bool { return x.sess != m.n })
	cache.List(c, &sems, m.semLocked)
	var doubts []doubt
	for d := range t.doubts {
		doubts = append(doubts, d)
	}
	cache.List(c, &doubts, func(d *doubt) {
		fence := t.doubts[*d]
		c.String(&d.lock)
		cache.Num(c, &d.token)
		c.Bool(&d.permit)
		cache.Num(c, &fence)
		t.doubts[*d] = fence
	})
}

// lockKey is what locks' lock keys and permits' have in common.
func (m *moving) lockKey(g *lockKey) {
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

func (m *moving) semLocked(p **sem) {
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
		if m.Reading && x.tokens[g.token] != g { // nothing was there
			x.slots[i] = nil
			x.free = append(x.free, i)
		}
	}
}

func (m *moving) permitLocked(x *sem, g *lockKey) {
	t, c, p := &m.s.lockKeys, m.Coder, g.permit
	held := g.held
	m.lockKey(g)
	c.Bool(&held)
	c.Bool(&p.queued)
	c.Bool(&p.unsure)
	cache.Num(c, &p.limit)
	if !m.Reading {
		return
	}
	p.value = permitValue(g.token)
	x.tokens[g.token] = g
	unsure := p.unsure
	switch {
	case held:
		t.heldLocked(g, g.rev, m.s.clock())
	case p.queued:
		pred := g.pred
		g.pred = "" // it has no watch yet
		t.waitsLocked(g, pred, g.predRev)
	}
	p.unsure = unsure
}
