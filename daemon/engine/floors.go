package engine

import (
	"errors"
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

// This file carries the fence floors over a reload: see cache.Table.Carry.

// rerouted describes keys whose store or fence_epoch has changed: the keys with one prefix, except
// keys with a longer prefix that either configuration names.
type rerouted struct {
	was, is *route
	known   uint64 // an upper bound of the bases that were seen of these keys
	given   uint64 // an upper bound of the bases that the store of was has itself given
}

// follow makes r the present routes. At the same moment, the floors move with the keys from store
// to store, and holds and waiters begin to count in their new namespaces. So follow holds the
// mutexes of all shards: an acquire reads the routes while it holds its shard's mutex, and sees
// either everything or nothing of the change. No other code holds the mutexes of two shards.
func (e *Engine) follow(r *routeTable) {
	for i := range e.shards {
		e.lock(i)
	}
	was := e.routes.Load()
	changed := e.carryFloors(was, r)
	for _, c := range changed {
		for i := range e.shards {
			e.shards[i].table.Leave(c.was.core, c.is.core, c.was.FenceEpoch)
		}
	}
	if r.limitMore(was) {
		for i := range e.shards {
			e.shards[i].table.Follow(r.policy)
		}
	}
	e.routes.Store(r)
	for i := range e.shards {
		e.shards[i].mu.Unlock()
	}
	e.reportFalls(changed)
}

// carryFloors tells all tables which keys move between stores when is replaces was. Every shard's
// mutex is held.
func (e *Engine) carryFloors(was, is *routeTable) (changed []rerouted) {
	if was == nil {
		return nil
	}
	for _, p := range prefixes(was, is) {
		c := rerouted{was: routeFor(was, p), is: routeFor(is, p)}
		if c.was.StoreLane == c.is.StoreLane &&
			(c.is.core.Raises() || c.was.FenceEpoch <= c.is.FenceEpoch) {
			continue
		}
		for i := range e.shards {
			c.known = max(c.known, e.shards[i].table.Known(c.was.core, c.was.FenceEpoch))
			c.given = max(c.given, e.shards[i].table.Given(c.was.core, c.was.FenceEpoch))
		}
		changed = append(changed, c)
	}
	// Only after all floors are known, because keys may move in a circle, for example between two
	// stores.
	for _, c := range changed {
		for i := range e.shards {
			e.shards[i].table.Carry(c.is.core, c.known)
		}
	}
	return changed
}

// reportFalls reports the keys whose fences may be smaller from now on.
func (e *Engine) reportFalls(changed []rerouted) {
	type way struct {
		from, to *StoreLane
		prefix   string
	}
	told := make(map[way]bool) // a class has its own prefix
	for _, c := range changed {
		w := way{c.was.StoreLane, c.is.StoreLane, c.is.Prefix}
		if e.observer == nil || told[w] || c.is.core.Carries(c.known, c.is.FenceEpoch) ||
			c.continues() {
			continue
		}
		told[w] = true
		e.observer.FencesMayFall(c.is.Prefix, c.is.StoreLane.Name(), c.known)
	}
}

// continues reports whether the keys keep a store that has itself given the highest base. Then the
// order of that store, or the rules of a pair, keep fences rising. The fence_epoch of a single
// store that orders its bases itself is part of its fences, so it must not be lower now. A pair
// applies its fence_epoch itself.
func (c *rerouted) continues() bool {
	return c.was.StoreLane != c.is.StoreLane && c.was.shares(c.is.StoreLane) &&
		c.given == c.known &&
		(c.was.core.Raises() || c.is.core.Pair || c.was.FenceEpoch <= c.is.FenceEpoch)
}

// shares reports whether sl and o have a store in common.
func (sl *StoreLane) shares(o *StoreLane) bool {
	a, b := sl.parts.Load(), o.parts.Load()
	return a != nil && b != nil && slices.ContainsFunc(*a, func(p Part) bool {
		return slices.ContainsFunc(*b, func(q Part) bool { return p.Place == q.Place })
	})
}

// routing writes or reads the routes. A process that takes over with another configuration carries
// the floors as a reload does.
func (m *snapshotCoder) routing() {
	var all []*route
	if !m.Reading {
		for _, p := range slices.Sorted(maps.Keys(m.e.routes.Load().routes)) {
			all = append(all, m.e.routes.Load().routes[p])
		}
		all = slices.DeleteFunc(all, func(rt *route) bool { return rt.part })
	}
	m.was = &routeTable{routes: make(map[string]*route)}
	cache.List(m.Coder, &all, func(rt **route) {
		var s *cache.StoreTraits
		if m.Reading {
			*rt = new(route)
		} else {
			s = (*rt).core
		}
		m.String(&(*rt).Prefix)
		m.Store(m.Coder, &s)
		cache.Num(m.Coder, &(*rt).FenceEpoch)
		if m.Reading {
			(*rt).StoreLane = (*m.e.storeLanes.Load())[s.ID]
			m.was.add((*rt).Prefix, *rt)
		}
	})
	if m.was.routes[""] == nil && m.Reading {
		m.Fail(errors.New("the snapshot has no namespace with the empty prefix"))
	}
}
