package redlock

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

var _ upstream.Mover = (*Store)(nil)

// Identity is the instance id.
func (s *Store) Identity() string { return s.instance }

// Leave returns what is known of each token at the nodes. What is still on its way there counts as
// not answered.
func (s *Store) Leave() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*lease
	for _, g := range s.leases {
		all = append(all, g)
	}
	for _, n := range s.nodes { // those that a newer one of the same token has replaced
		for _, g := range n.pendingReleases {
			if s.leases[g.leaseID] != g && !slices.Contains(all, g) {
				all = append(all, g)
			}
		}
	}
	c := new(cache.Coder)
	m := &moving{Coder: c, s: s, late: s.onTheirWayLocked()}
	m.code(all)
	return c.B, nil
}

// Stay has nothing to do.
func (s *Store) Stay() {}

// Arrive takes in what Leave returned.
func (s *Store) Arrive(state []byte) (begin func(), err error) {
	m := &moving{Coder: &cache.Coder{B: state, Reading: true}, s: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := m.code(nil)
	if m.Err != nil {
		return nil, fmt.Errorf("redlock: %w", m.Err)
	}
	for _, g := range all {
		if old := s.leases[g.leaseID]; old == nil || old.number < g.number {
			s.leases[g.leaseID] = g
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, g := range all {
			s.settleLocked(g)
		}
	}, nil
}

// onItsWay is what may still be carried out of a lease.
type onItsWay struct{ acquires, releases set }

// onTheirWayLocked is what the nodes have been sent, or will be, and have not answered.
func (s *Store) onTheirWayLocked() map[*lease]*onItsWay {
	late := make(map[*lease]*onItsWay)
	for _, n := range s.nodes {
		for _, j := range slices.Concat(n.running, n.queue) {
			for i := range j.ops {
				g := j.parts[i].g
				if g == nil {
					continue
				}
				if late[g] == nil {
					late[g] = new(onItsWay)
				}
				switch j.ops[i].Kind {
				case cache.OpTry, cache.OpJoin:
					late[g].acquires.add(n.i)
				case cache.OpRelease, cache.OpWithdraw:
					late[g].releases.add(n.i)
				}
			}
		}
	}
	return late
}

// moving writes or reads leases.
type moving struct {
	*cache.Coder
	s    *Store
	late map[*lease]*onItsWay
}

func (m *moving) code(all []*lease) []*lease {
	hosts := m.s.cfg.URL.Hosts
	var theirs []string
	if !m.Reading {
		theirs = hosts
	}
	cache.List(m.Coder, &theirs, m.String)
	if !slices.Equal(hosts, theirs) {
		m.Fail(fmt.Errorf("the nodes are %v, and were %v", hosts, theirs))
		return nil
	}
	cache.List(m.Coder, &all, func(p **lease) {
		if m.Reading {
			*p = new(lease)
		}
		m.lease(*p)
	})
	return all
}

func (m *moving) lease(g *lease) {
	unsure, shaky, maybe := g.unsure, g.shaky, g.maybe
	if l := m.late[g]; l != nil {
		unsure, maybe, shaky = unsure|l.acquires, maybe|l.acquires, shaky|l.releases
	}
	m.String(&g.key)
	for _, n := range []*uint64{&g.token, &g.number} {
		cache.Num(m.Coder, n)
	}
	cache.Num(m.Coder, &g.mode)
	m.Bool(&g.over)
	m.Bool(&g.pending)
	for _, set := range []*set{&maybe, &g.sure, &unsure, &g.lag, &shaky} {
		cache.Num(m.Coder, set)
	}
	for _, t := range []*int64{&g.until, &g.ends, &g.again} {
		cache.Num(m.Coder, t)
	}
	if m.Reading {
		g.maybe, g.unsure, g.shaky = maybe, unsure, shaky
	}
}
