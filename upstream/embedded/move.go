package embedded

import (
	"fmt"
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Identity returns an empty string: a successor needs nothing to open the store.
func (s *Store) Identity() string { return "" }

// Leave returns the leases, the queues and the session. The Store does not write the state file
// before Stay, because the successor may write it.
func (s *Store) Leave() ([]byte, error) {
	s.session.io.Lock()
	m := &moving{new(cache.Coder), s}
	m.code()
	return m.B, nil
}

// Stay ends a Leave.
func (s *Store) Stay() { s.session.io.Unlock() }

// Arrive adopts the state that Leave returned. The state file is used only from begin on.
func (s *Store) Arrive(state []byte) (begin func(), err error) {
	m := &moving{&cache.Coder{B: state, Reading: true}, s}
	if m.code(); m.Err != nil {
		return nil, fmt.Errorf("embedded: %w", m.Err)
	}
	return func() {
		n := &s.session
		s.successor = false
		n.io.Lock()
		if until := n.until.Load(); until != 0 {
			n.deadlines.Send(upstream.Session{No: n.no.Load(), Until: until})
		}
		n.io.Unlock()
		go s.run()
	}, nil
}

// moving writes or reads the state of a Store.
type moving struct {
	*cache.Coder
	s *Store
}

func (m *moving) code() {
	n := &m.s.session
	until, held := n.until.Load(), n.held.Load()
	limit, base, no := n.limit.Load(), n.base.Load(), n.no.Load()
	for _, v := range []*int64{&until, &held, &n.grace} {
		cache.Num(m.Coder, v)
	}
	cache.Num(m.Coder, &limit)
	cache.Num(m.Coder, &base)
	cache.Num(m.Coder, &no)
	cache.Num(m.Coder, &n.graceTTL)
	over, dirty := n.graceOver.Load(), n.dirty.Load()
	m.Bool(&over)
	m.Bool(&dirty)
	if m.Reading {
		n.graceOver.Store(over)
		n.dirty.Store(dirty)
	}
	n.until.Store(until)
	n.held.Store(held)
	n.limit.Store(limit)
	n.base.Store(base)
	n.no.Store(no)
	for i := range m.s.shards {
		m.shard(&m.s.shards[i])
	}
}

// shard writes the state of d, or reads the state of one of the other process's shards. The keys of
// such a shard are in several shards here, because each process has its own seed.
func (m *moving) shard(d *shard) {
	n := len(d.held)
	m.Len(&n)
	if m.Reading {
		for range n {
			var key string
			var lease uint64
			m.entry(&key, &lease)
			m.s.shard(key).held[key] = lease
		}
	} else {
		for key, lease := range d.held {
			m.entry(&key, &lease)
		}
	}
	queued := entries(d.queued)
	cache.List(m.Coder, &queued, func(q *entry) {
		m.entry(&q.key, &q.token)
		if to := m.s.shard(q.key); m.Reading {
			if to.queued == nil {
				to.queued = make(map[string]uint64)
			}
			to.queued[q.key] = q.token
		}
	})
	sems := slices.Collect(maps.Keys(d.permits))
	cache.List(m.Coder, &sems, func(key *string) { m.permits(d, key) })
	m.kept(d)
	m.left(d)
}

// kept writes or reads the leases of d that are in the state file.
func (m *moving) kept(d *shard) {
	ids := slices.Collect(maps.Keys(d.kept))
	cache.List(m.Coder, &ids, func(id *keptID) {
		until := d.kept[*id]
		m.entry(&id.key, &id.token)
		m.Bool(&id.permit)
		cache.Num(m.Coder, &until)
		if to := m.s.shard(id.key); m.Reading {
			if to.kept == nil {
				to.kept = make(map[keptID]int64)
			}
			to.kept[*id] = until
		}
	})
}

// left writes or reads the leases of d that an earlier process has left.
func (m *moving) left(d *shard) {
	keys := slices.Collect(maps.Keys(d.left))
	cache.List(m.Coder, &keys, func(key *string) {
		all := d.left[*key]
		m.String(key)
		cache.List(m.Coder, &all, func(l *leftLease) {
			cache.Num(m.Coder, &l.mode)
			cache.Num(m.Coder, &l.until)
		})
		if to := m.s.shard(*key); m.Reading {
			if to.left == nil {
				to.left = make(map[string][]leftLease)
			}
			to.left[*key] = all
		}
	})
}

func (m *moving) entry(key *string, token *uint64) {
	m.String(key)
	cache.Num(m.Coder, token)
}

type entry struct {
	key   string
	token uint64
}

func entries(of map[string]uint64) []entry {
	all := make([]entry, 0, len(of))
	for key, token := range of {
		all = append(all, entry{key, token})
	}
	return all
}

// permits writes or reads one semaphore.
func (m *moving) permits(d *shard, key *string) {
	m.String(key)
	p := &permits{held: make(map[uint64]struct{})}
	if !m.Reading {
		p = d.permits[*key]
	} else {
		to := m.s.shard(*key)
		if to.permits == nil {
			to.permits = make(map[string]*permits)
		}
		to.permits[*key] = p
	}
	tokens := slices.Collect(maps.Keys(p.held))
	number := func(n *uint64) { cache.Num(m.Coder, n) }
	cache.List(m.Coder, &tokens, number)
	cache.List(m.Coder, &p.queued, number)
	for _, t := range tokens {
		p.held[t] = struct{}{}
	}
}
