package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// cycles detects rings of owners on this host that wait for each other. Only the
// end of a wait, or a release out of order, ends such a ring. It checks when
// keepalives are due, because every session with a hold gets keepalives.
type cycles struct {
	count atomic.Uint64 // rings found

	// Of Tick alone.
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
	key    string
	client *string
}

// findCycles reports each ring that two checks in a row have found. A check visits
// the shards one after the other, so a single one could find a ring of waits that
// never existed at the same time.
func (e *Engine) findCycles(now int64, all []*Session) {
	c := &e.cycles
	if e.observer == nil || now < c.next {
		return
	}
	c.next = now + int64(cycleEvery)
	seen := make(map[string]bool)
	for _, ring := range rings(e.waits(all)) {
		sign := signature(ring)
		told, twice := c.seen[sign]
		if twice && !told {
			c.count.Add(1)
			e.observer.WaitCycle(cycleWaits(ring))
		}
		seen[sign] = twice
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
				graph[from] = append(graph[from],
					edge{owner{w.Holder.ID, w.HoldOwner}, w.Request, key, s.client.Load()})
				if n++; n >= cycleEdges {
					break
				}
			}
			sh.mu.Unlock()
		}
	}
	return graph
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

// signature is the same for the same ring, wherever it is entered.
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
