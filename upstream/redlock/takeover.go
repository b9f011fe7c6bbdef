package redlock

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

// Identity returns the instance id.
func (s *Store) Identity() string { return s.instance }

// Leave returns the state of each token at the nodes. Calls in flight count as not answered.
func (s *Store) Leave() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*lease
	for _, l := range s.leases {
		all = append(all, l)
	}
	for _, n := range s.nodes { // leases that a newer one of the same token has replaced
		for _, l := range n.pendingReleases {
			if s.leases[l.leaseID] != l && !slices.Contains(all, l) {
				all = append(all, l)
			}
		}
	}
	c := new(cache.Coder)
	m := &leaseCoder{Coder: c, s: s, inFlight: s.inFlightLocked()}
	m.code(all)
	return c.B, nil
}

// Stay has nothing to do.
func (s *Store) Stay() {}

// Arrive adopts the state that Leave returned.
func (s *Store) Arrive(state []byte) (begin func(), err error) {
	m := &leaseCoder{Coder: &cache.Coder{B: state, Reading: true}, s: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := m.code(nil)
	if m.Err != nil {
		return nil, fmt.Errorf("redlock: %w", m.Err)
	}
	for _, l := range all {
		if old := s.leases[l.leaseID]; old == nil || old.number < l.number {
			s.leases[l.leaseID] = l
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range all {
			s.trackLocked(l)
		}
	}, nil
}

// inFlight has the nodes that may still carry out calls about a lease.
type inFlight struct{ acquires, releases set }

// inFlightLocked returns the calls that are queued or in flight at the nodes.
func (s *Store) inFlightLocked() map[*lease]*inFlight {
	late := make(map[*lease]*inFlight)
	for _, n := range s.nodes {
		for _, j := range n.jobsLocked() {
			for i := range j.ops {
				l := j.parts[i].lease
				if l == nil {
					continue
				}
				if late[l] == nil {
					late[l] = new(inFlight)
				}
				switch j.ops[i].Kind {
				case cache.OpTry, cache.OpJoin:
					late[l].acquires.add(n.i)
				case cache.OpRelease, cache.OpWithdraw:
					late[l].releases.add(n.i)
				}
			}
		}
	}
	return late
}

// leaseCoder writes or reads leases.
type leaseCoder struct {
	*cache.Coder
	s        *Store
	inFlight map[*lease]*inFlight
}

func (m *leaseCoder) code(all []*lease) []*lease {
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

func (m *leaseCoder) lease(l *lease) {
	unsure, shaky, maybe := l.lateAcquire, l.lateRelease, l.mayHave
	if f := m.inFlight[l]; f != nil {
		unsure, maybe, shaky = unsure|f.acquires, maybe|f.acquires, shaky|f.releases
	}
	m.String(&l.key)
	for _, n := range []*uint64{&l.token, &l.number} {
		cache.Num(m.Coder, n)
	}
	cache.Num(m.Coder, &l.mode)
	m.Bool(&l.obsolete)
	m.Bool(&l.reusable)
	for _, set := range []*set{&maybe, &l.granted, &unsure, &l.exclusiveAt, &shaky} {
		cache.Num(m.Coder, set)
	}
	for _, t := range []*int64{&l.until, &l.endsAt, &l.notBefore} {
		cache.Num(m.Coder, t)
	}
	if m.Reading {
		l.mayHave, l.lateAcquire, l.lateRelease = maybe, unsure, shaky
	}
}
