package redlock

import (
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// leaseID is a token with its key.
type leaseID struct {
	key   string
	token uint64
}

// A token has a number of its own at the nodes: the table's, and how often it had
// to begin anew. Numbers have to rise with the table's, and Lua counts exactly only
// up to 2^53.
const (
	againBits = 8
	againMask = 1<<againBits - 1
)

// lease is what is known of one token at the nodes. All of it is guarded by
// Store.mu.
type lease struct {
	leaseID
	number uint64 // at the nodes

	mode    cache.Mode
	over    bool // it has to go: nobody holds by it any more
	pending bool // the caller may ask again by it, or will withdraw it

	maybe  set // nodes where it may stand
	sure   set // of these: where it was granted
	unsure set // of these: where an acquire was not answered, and may still be carried out
	lag    set // where it may still be exclusive although it is to be shared
	shaky  set // nodes where a release was not answered, and may still be carried out
	owed   set // nodes whose pendingReleases contain it

	until int64 // the deadline of the last grant or renewal by a quorum; 0 before
	ends  int64 // when all of it has ended at the nodes by itself
	again int64 // not to be asked about before

	flying int // jobs that hold on to it
	calls  int // calls in flight that are about it: until they end, no release is pending
}

// leaseLocked returns the lease of op's token, nil when it is not known.
func (s *Store) leaseLocked(op *upstream.Op) *lease { return s.leases[leaseID{op.Key, op.Token}] }

func (s *Store) newLeaseLocked(op *upstream.Op) *lease {
	g := &lease{leaseID: leaseID{op.Key, op.Token}, number: op.Token << againBits, mode: op.Mode}
	s.leases[g.leaseID] = g
	return g
}

// acquireLocked returns the lease for an acquire. If a late release may still end the existing lease at some node,
// that lease is left to its pending releases, and the token gets a new one.
func (s *Store) acquireLocked(op *upstream.Op) *lease {
	g := s.leaseLocked(op)
	if g == nil {
		return s.newLeaseLocked(op)
	}
	g.over = false // asked for again
	if g.shaky != 0 && g.number&againMask < againMask {
		old := g
		g = s.newLeaseLocked(op)
		g.number, g.pending = old.number+1, old.pending
		old.over, old.pending = true, false
		s.settleLocked(old)
	}
	return g
}

// foreseeLocked notes that an op with a TTL is about to be sent, or may be carried
// out as late as now.
func (s *Store) foreseeLocked(g *lease, op *upstream.Op, now int64) {
	ttl := op.TTL
	if ttl <= 0 {
		ttl = s.cfg.MaxTTL
	}
	g.ends = max(g.ends, now+int64(s.nodeTTL(ttl)+s.cfg.Timeout))
}

// sendingLocked notes what j may do at its node from now on.
func (s *Store) sendingLocked(j *job, now int64) {
	for i := range j.ops {
		g := j.parts[i].g
		if g == nil {
			continue
		}
		switch j.ops[i].Kind {
		case cache.OpTry, cache.OpJoin:
			g.maybe.add(j.n.i)
			s.foreseeLocked(g, &j.ops[i], now)
		case cache.OpRenew, cache.OpDowngrade:
			s.foreseeLocked(g, &j.ops[i], now)
		}
	}
}

// noteLocked keeps account of what a node's answers say of tokens there.
func (s *Store) noteLocked(j *job, now int64) {
	n := j.n.i
	for i := range j.ops {
		g, st := j.parts[i].g, j.results[i].Status
		if g == nil {
			continue
		}
		g.flying--
		switch j.ops[i].Kind {
		case cache.OpTry, cache.OpJoin:
			switch {
			case st == cache.Granted:
				g.maybe.add(n)
				g.sure.add(n)
				if j.ops[i].Mode == cache.Exclusive && g.mode == cache.Shared {
					g.lag.add(n) // a healed node that missed the downgrade
				}
			case st == cache.Busy && !g.unsure.has(n), st == cache.Refused && !g.sure.has(n) && !g.unsure.has(n):
				g.gone(n)
			case st != cache.Refused && st != cache.Busy:
				g.maybe.add(n)
				g.unsure.add(n)
				s.foreseeLocked(g, &j.ops[i], now)
			}
		case cache.OpRelease, cache.OpWithdraw:
			if st == cache.Unknown {
				g.shaky.add(n)
			}
			switch {
			case st == cache.NotHeld && g.unsure.has(n):
				// The acquire may yet be carried out, when the node comes to what it
				// was sent before: asked once more.
				g.unsure.drop(n)
				g.again = now + int64(s.cfg.Timeout)
			case st == cache.Done || st == cache.NotHeld:
				g.gone(n)
			case j.lane == laneBack:
				g.again = now + int64(s.cfg.Timeout)
			}
		case cache.OpDowngrade:
			if st == cache.Done || st == cache.NotHeld {
				g.lag.drop(n)
			} else if j.lane == laneBack {
				g.again = now + int64(s.cfg.Timeout)
			}
		}
		if j.call == nil {
			s.settleLocked(g)
		}
	}
}

// gone notes that the token does not stand at node n.
func (g *lease) gone(n int) {
	g.maybe.drop(n)
	g.sure.drop(n)
	g.unsure.drop(n)
	g.lag.drop(n)
}

// owes returns the nodes at which g still has to be released or downgraded.
func (g *lease) owes() set {
	if g.over {
		return g.maybe
	}
	return g.lag & g.maybe
}

// settleLocked adds g to the pendingReleases of those nodes, and forgets it when nothing is left of it.
func (s *Store) settleLocked(g *lease) {
	if g.calls > 0 {
		return
	}
	if g.over && g.maybe == 0 && !g.pending && g.flying == 0 {
		if s.leases[g.leaseID] == g {
			delete(s.leases, g.leaseID)
		}
		return
	}
	owes := g.owes()
	if owes == 0 {
		return
	}
	for _, n := range s.nodes {
		if owes.has(n.i) && !g.owed.has(n.i) {
			g.owed.add(n.i)
			n.pendingReleases = append(n.pendingReleases, g)
		}
	}
	s.kick()
}

// pendingLocked returns a job for the pending releases that can be sent to node n now, or nil. next is when to check
// again.
func (s *Store) pendingLocked(n *node, now int64) (j *job, next int64) {
	next = cache.Forever
	used := map[string]bool{}
	n.usedLocked(used)
	kept := n.pendingReleases[:0]
	for _, g := range n.pendingReleases {
		if g.over && now >= g.ends {
			g.gone(n.i) // it has ended there by itself
		}
		if !g.owes().has(n.i) {
			g.owed.drop(n.i)
			s.settleLocked(g)
			continue
		}
		kept = append(kept, g)
		switch {
		case used[g.key] || g.calls > 0 || j != nil && len(j.ops) == upstream.MaxBatch:
			// When that is done there is a look again.
		case g.again > now:
			next = min(next, g.again)
		default:
			used[g.key] = true
			if j == nil {
				j = &job{n: n, lane: laneBack}
			}
			j.put(g.op(n.i, now), part{g: g})
		}
	}
	clear(n.pendingReleases[len(kept):])
	n.pendingReleases = kept
	return j, next
}

// op is what settles g at node n.
func (g *lease) op(n int, now int64) upstream.Op {
	op := upstream.Op{Kind: cache.OpRelease, Mode: g.mode, Key: g.key, Token: g.number}
	if !g.over {
		op.Kind, op.Mode, op.TTL = cache.OpDowngrade, cache.Shared, time.Duration(max(g.until-now, 1))
	}
	return op
}
