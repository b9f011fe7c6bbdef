package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// cycles detects rings of owners on this host that wait for each other. Only the end of a wait, or
// a release by an owner that waits, ends such a ring. The check runs when keepalives are due,
// because every session with a hold gets keepalives.
type cycles struct {
	count atomic.Uint64 // rings found

	// Used by Tick alone.
	next int64           // no check before this time
	seen map[string]bool // the rings of the last check; true for those that were reported
}

const (
	cycleEvery = time.Second
	// cycleEdges and maxCycles bound the edges that one check considers and the rings that it
	// finds, so that it does not delay renewals. A larger graph is checked in part.
	cycleEdges = 1 << 13
	maxCycles  = 64
)

type owner struct{ session, owner uint64 }

// edge is the wait of one owner for another, with the request and the key.
type edge struct {
	to     owner
	req    uint64
	any    *anyAcquire // the request, if it is an acquire-any; else nil
	key    string
	client *string
}

// findCycles reports each ring that two checks in a row have found. A check visits the shards one
// after the other, so a single check could find a ring of waits that never existed at the same
// time.
func (e *Engine) findCycles(now int64, all []*Session) {
	c := &e.cycles
	if e.observer == nil || now < c.next {
		return
	}
	c.next = now + int64(cycleEvery)
	seen := make(map[string]bool)
	for _, ring := range rings(withoutFree(e.waits(all))) {
		id := signature(ring)
		reported, twice := c.seen[id]
		if twice && !reported {
			c.count.Add(1)
			e.observer.WaitCycle(cycleWaits(ring))
		}
		seen[id] = twice
	}
	c.seen = seen
}

// waits returns the present edges, by the waiting owner.
func (e *Engine) waits(all []*Session) map[owner][]edge {
	graph := make(map[owner][]edge)
	n := 0
	for _, s := range all {
		if s.core.Waiters.Load() == 0 {
			continue
		}
		mask := s.core.Shards.Load()
		for i := range e.shards {
			if mask&(1<<i) == 0 || n >= cycleEdges {
				continue
			}
			sh := e.lock(i)
			for key, w := range sh.table.Waits(s.core) {
				from := owner{s.core.ID, w.Owner}
				p, _ := w.Reply.(part)
				graph[from] = append(graph[from], edge{owner{w.Holder.ID, w.HoldOwner}, w.Request,
					p.anyAcquire, key, s.client.Load()})
				if n++; n >= cycleEdges {
					break
				}
			}
			sh.mu.Unlock()
		}
	}
	return graph
}

// withoutFree removes from graph the waits of each acquire-any that is not blocked: for one of its
// keys, no holder on this host is stuck. An owner is stuck if one of its requests waits for a stuck
// owner, or is an acquire-any that is blocked. withoutFree returns graph.
func withoutFree(graph map[owner][]edge) map[owner][]edge {
	b := blocks{into: make(map[owner][]step), n: make(map[owner]int),
		holders: make(map[anyKey]int), keys: make(map[*anyAcquire]int)}
	for from, edges := range graph {
		for _, x := range edges {
			b.add(graph, step{from, x})
		}
	}
	if len(b.keys) == 0 {
		return graph
	}
	var free []owner // not stuck
	for from := range graph {
		if b.n[from] == 0 {
			free = append(free, from)
		}
	}
	for len(free) > 0 {
		last := free[len(free)-1]
		free = free[:len(free)-1]
		for _, x := range b.into[last] {
			if b.remove(x) {
				free = append(free, x.from)
			}
		}
	}
	for from, edges := range graph {
		graph[from] = slices.DeleteFunc(edges, func(x edge) bool {
			return x.any != nil && b.keys[x.any] < len(x.any.keys)
		})
	}
	return graph
}

// blocks counts the waits that keep owners stuck. At first every owner that waits counts as stuck.
type blocks struct {
	into    map[owner][]step    // the waits for each stuck owner
	n       map[owner]int       // requests of each owner that wait for stuck owners, once for each
	holders map[anyKey]int      // stuck holders of each key of an acquire-any
	keys    map[*anyAcquire]int // keys of each acquire-any that have such holders
}

type anyKey struct {
	m   *anyAcquire
	key string
}

// add counts a wait.
func (b *blocks) add(graph map[owner][]edge, x step) {
	stuck := len(graph[x.to]) > 0
	if stuck {
		b.into[x.to] = append(b.into[x.to], x)
	}
	switch k := (anyKey{x.any, x.key}); {
	case x.any == nil && stuck:
		b.n[x.from]++
	case x.any == nil:
	case !stuck:
		b.keys[x.any] += 0 // add an entry: withoutFree needs one for each acquire-any
	default:
		if b.holders[k]++; b.holders[k] > 1 {
			return
		}
		if b.keys[x.any]++; b.keys[x.any] == len(x.any.keys) {
			b.n[x.from]++
		}
	}
}

// remove counts a wait for an owner that is not stuck any more. It reports whether the waiting
// owner is not stuck any more either.
func (b *blocks) remove(x step) bool {
	if x.any != nil {
		k := anyKey{x.any, x.key}
		if b.holders[k]--; b.holders[k] > 0 {
			return false
		}
		if b.keys[x.any]--; b.keys[x.any] < len(x.any.keys)-1 {
			return false
		}
	}
	b.n[x.from]--
	return b.n[x.from] == 0
}

// step is one wait of a ring.
type step struct {
	from owner
	edge
}

// rings returns a ring for each edge that closes one in a depth-first search of the graph. It finds
// at least one ring in each group of owners that wait for each other.
func rings(graph map[owner][]edge) (found [][]step) {
	const walking, done = 1, 2
	state := make(map[owner]int)
	for _, start := range sortedOwners(graph) {
		if state[start] != 0 {
			continue
		}
		state[start] = walking
		path := []step{{from: start}}
		at := []int{0} // the next edge of each owner on the path
		for len(path) > 0 && len(found) < maxCycles {
			top := len(path) - 1
			edges := graph[path[top].from]
			if at[top] == len(edges) {
				state[path[top].from] = done
				path, at = path[:top], at[:top]
				continue
			}
			path[top].edge = edges[at[top]]
			at[top]++
			switch to := path[top].to; state[to] {
			case 0:
				state[to] = walking
				path, at = append(path, step{from: to}), append(at, 0)
			case walking:
				n := slices.IndexFunc(path, func(s step) bool { return s.from == to })
				found = append(found, slices.Clone(path[n:]))
			}
		}
	}
	return found
}

func sortedOwners(graph map[owner][]edge) []owner {
	all := make([]owner, 0, len(graph))
	for o := range graph {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b owner) int {
		return cmp.Or(cmp.Compare(a.session, b.session), cmp.Compare(a.owner, b.owner))
	})
	return all
}

// signature returns a string that identifies a ring, whichever owner the search began with.
func signature(ring []step) string {
	parts := make([]string, len(ring))
	for n, s := range ring {
		parts[n] = fmt.Sprint(s.from, s.req, s.to, s.key)
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// cycleWaits describes a ring to the observer.
func cycleWaits(ring []step) []CycleWait {
	waits := make([]CycleWait, len(ring))
	for n, s := range ring {
		waits[n] = CycleWait{Session: s.from.session, Owner: s.from.owner, Key: s.key,
			HolderSession: s.to.session, HolderOwner: s.to.owner}
		if s.client != nil {
			waits[n].Client = *s.client
		}
	}
	return waits
}
