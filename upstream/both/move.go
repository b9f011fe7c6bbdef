package both

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

var _ upstream.Mover = (*Store)(nil)

// Moves says whether both stores can.
func (s *Store) Moves() bool { return upstream.Moves(s.old) != nil && upstream.Moves(s.new) != nil }

// Identity is those of both.
func (s *Store) Identity() string {
	b, _ := json.Marshal([2]string{upstream.Moves(s.old).Identity(), upstream.Moves(s.new).Identity()})
	return string(b)
}

// Successors returns the Successor of each store of a pair.
func Successors(h *upstream.Successor) (both [2]*upstream.Successor) {
	var ids [2]string
	if h == nil || json.Unmarshal([]byte(h.Identity), &ids) != nil {
		return both
	}
	for i := range both {
		both[i] = &upstream.Successor{Identity: ids[i], Lock: h.Lock}
	}
	return both
}

// Leave returns what both do, and their sessions.
func (s *Store) Leave() ([]byte, error) {
	var states [2][]byte
	for i, st := range []upstream.Store{s.old, s.new} {
		var err error
		if states[i], err = upstream.Moves(st).Leave(); err != nil {
			if i > 0 {
				upstream.Moves(s.old).Stay()
			}
			return nil, err
		}
	}
	c := new(cache.Coder)
	s.code(c, &states)
	return c.B, nil
}

// Stay tells both.
func (s *Store) Stay() {
	upstream.Moves(s.old).Stay()
	upstream.Moves(s.new).Stay()
}

// Arrive has both arrive.
func (s *Store) Arrive(state []byte) (begin func(), err error) {
	c := &cache.Coder{B: state, Reading: true}
	var states [2][]byte
	if s.code(c, &states); c.Err != nil {
		return nil, fmt.Errorf("both: %w", c.Err)
	}
	var begins [2]func()
	for i, st := range []upstream.Store{s.old, s.new} {
		if begins[i], err = upstream.Moves(st).Arrive(states[i]); err != nil {
			return nil, err
		}
	}
	return func() { begins[0](); begins[1]() }, nil
}

func (s *Store) code(c *cache.Coder, states *[2][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range states {
		c.Bytes(&states[i])
		cache.Num(c, &s.known[i].No)
		cache.Num(c, &s.known[i].Until)
		c.Bool(&s.known[i].Lost)
	}
	places := slices.SortedFunc(maps.Keys(s.places), func(a, b place) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.token, b.token))
	})
	cache.List(c, &places, func(p *place) {
		c.String(&p.key)
		cache.Num(c, &p.token)
		is := s.places[*p]
		cache.Num(c, &is)
		s.places[*p] = is
	})
}
