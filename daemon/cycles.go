package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// cycles finds owners of this host that wait for each other in a ring. Nothing
// but the bounds of their waits, or a release out of turn, ends that. It looks
// when beats are due: whoever holds something has them.
type cycles struct {
	found func(ring []step) // nil to not look

	count atomic.Uint64 // rings found

	// Of Tick alone.
	next int64           // do not look before
	seen map[string]bool // the rings of the last look, true once told
}

const (
	cycleEvery = time.Second
	// cycleEdges and cycleMost bound what one look takes in and finds, so that it
	// does not keep renewals waiting; a larger crowd is looked at in part.
	cycleEdges = 1 << 13
	cycleMost  = 64
)

type owner struct{ session, owner uint64 }

// edge says who waits for whom, by which request for which key.
type edge struct {
	to     owner
	req    uint64
	key    string
	client *string
}

// lookForCycles tells of each ring that two looks have seen: the shards are looked
// at one after the other, so one look alone could make up a ring of waits that
// were never there together.
func (e *Engine) lookForCycles(now int64, all []*Session) {
	c := &e.cycles
	if c.found == nil || now < c.next {
		return
	}
	c.next = now + int64(cycleEvery)
	seen := make(map[string]bool)
	for _, ring := range rings(e.waits(all)) {
		sign := signature(ring)
		told, twice := c.seen[sign]
		if twice && !told {
			c.count.Add(1)
			c.found(ring)
		}
		seen[sign] = twice
	}
	c.seen = seen
}

// waits is who waits for whom now.
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
				graph[from] = append(graph[from], edge{owner{w.Holder.ID, w.HoldOwner}, w.Request, key, s.client.Load()})
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

// rings returns a ring for each wait that closes one on a walk over the graph in
// depth: at least one of each knot of owners who wait for each other.
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
		for len(path) > 0 && len(found) < cycleMost {
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

// logCycle tells the operator who waits for whom.
func (d *Daemon) logCycle(ring []step) {
	waits := make([]string, len(ring))
	for n, s := range ring {
		client := ""
		if s.client != nil {
			client = *s.client
		}
		waits[n] = fmt.Sprintf("session %d (%s) owner %d waits for %q, held by session %d owner %d",
			s.from.session, client, s.from.owner, d.key(s.key), s.to.session, s.to.owner)
	}
	d.log.Warn("owners wait for each other in a cycle", zap.String("event", "wait_cycle"), zap.Strings("waits", waits))
}
