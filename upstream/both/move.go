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

// movers returns the two stores as Movers. The methods of Mover are called only if both are.
func (s *Store) movers() [2]upstream.Mover {
	return [2]upstream.Mover{s.old.Capabilities().Mover, s.new.Capabilities().Mover}
}

// Identity returns the identities of both stores.
func (s *Store) Identity() string {
	m := s.movers()
	b, _ := json.Marshal([2]string{m[0].Identity(), m[1].Identity()})
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

// Leave returns the states of both stores, their sessions and the states of tokens.
func (s *Store) Leave() ([]byte, error) {
	var states [2][]byte
	movers := s.movers()
	for i, m := range movers {
		var err error
		if states[i], err = m.Leave(); err != nil {
			if i > 0 {
				movers[0].Stay()
			}
			return nil, err
		}
	}
	c := new(cache.Coder)
	s.code(c, &states)
	return c.B, nil
}

// Stay ends a Leave.
func (s *Store) Stay() {
	for _, m := range s.movers() {
		m.Stay()
	}
}

// Arrive adopts the state that Leave returned.
func (s *Store) Arrive(state []byte) (begin func(), err error) {
	c := &cache.Coder{B: state, Reading: true}
	var states [2][]byte
	if s.code(c, &states); c.Err != nil {
		return nil, fmt.Errorf("both: %w", c.Err)
	}
	var begins [2]func()
	for i, m := range s.movers() {
		if begins[i], err = m.Arrive(states[i]); err != nil {
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
	tokens := slices.SortedFunc(maps.Keys(s.tokens), func(a, b token) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.number, b.number))
	})
	cache.List(c, &tokens, func(t *token) {
		c.String(&t.key)
		cache.Num(c, &t.number)
		state := s.tokens[*t]
		cache.Num(c, &state)
		s.tokens[*t] = state
	})
}
