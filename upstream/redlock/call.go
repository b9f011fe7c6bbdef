package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// graceMin and graceMax bound how long a call whose quorum has decided waits for
// the other nodes; between them, as long as it took the quorum. Nodes that have
// not answered an earlier call yet are not waited for.
const (
	graceMin = time.Millisecond
	graceMax = 50 * time.Millisecond
)

// call is one Apply on its way. Its votes are the caller's goroutine's; what the
// nodes put into arrived is guarded by Store.mu.
type call struct {
	s       *Store
	ops     []upstream.Op
	results []upstream.Result
	votes   []vote
	bases   []uint64 // one for each op and node
	lefts   []int64  // the same
	began   int64    // boot clock
	lane    lane
	jobs    []*job  // that have not been taken in
	down    set     // nodes that turned out to be down
	whys    []error // of what a node did not do, by node
	err     error   // of the first op that was refused here

	arrived []*job // guarded by Store.mu
	woken   chan struct{}
}

// tell wakes the caller; it does not block.
func (c *call) tell() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// Apply asks all nodes at once and answers when a quorum has decided every op.
// What is left of it then is brought to its end in the background.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	c := s.newCall(ops, results)
	if err := ctx.Err(); err != nil {
		for i := range results {
			c.refuse(i, fmt.Errorf("not sent: %w", err))
		}
		return c.err
	}
	c.begin()
	for c.send() {
		over := c.await(ctx)
		for i := range c.votes {
			c.turn(i, over)
		}
		if over {
			break
		}
	}
	return c.end()
}

func (s *Store) newCall(ops []upstream.Op, results []upstream.Result) *call {
	c := &call{s: s, ops: ops, results: results, began: s.clock(), woken: make(chan struct{}, 1),
		whys: make([]error, len(s.nodes)), votes: make([]vote, len(ops)), bases: make([]uint64, len(ops)*len(s.nodes)), lefts: make([]int64, len(ops)*len(s.nodes))}
	for i := range c.lefts {
		c.lefts[i] = cache.Forever
	}
	c.lane = laneRenew
	for i := range ops {
		results[i] = upstream.Result{Left: -1}
		if ops[i].Kind != cache.OpRenew {
			c.lane = laneMain
		}
	}
	return c
}

// refuse ends op i before anything of it was sent.
func (c *call) refuse(i int, err error) {
	c.votes[i].stage = ended
	c.results[i] = upstream.Result{Status: cache.Refused, Left: -1, Err: err}
	if c.err == nil {
		c.err = err
	}
}

// begin looks up the tokens and says which nodes are asked.
func (c *call) begin() {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range c.ops {
		op, v := &c.ops[i], &c.votes[i]
		v.kind, v.nodes, v.asked = op.Kind, len(s.nodes), first(len(s.nodes))
		if op.TTL > s.cfg.MaxTTL && op.Kind != cache.OpPeek && op.Kind != cache.OpRelease && op.Kind != cache.OpWithdraw {
			c.refuse(i, fmt.Errorf("redlock: a TTL of %v is longer than max_ttl, %v, which restarted nodes wait out", op.TTL, s.cfg.MaxTTL))
			continue
		}
		if c.lookUpLocked(op, v); v.g != nil {
			v.g.calls++
		}
	}
}

// lookUpLocked finds or makes the lease of op, and notes what is wanted of it.
func (c *call) lookUpLocked(op *upstream.Op, v *vote) {
	s := c.s
	switch op.Kind {
	case cache.OpPeek:
		return
	case cache.OpTry, cache.OpJoin:
		v.g = s.acquireLocked(op)
		return
	}
	v.g = s.leaseLocked(op)
	switch op.Kind {
	case cache.OpRelease, cache.OpWithdraw:
		if v.g == nil { // of an earlier run of this daemon, or long settled
			v.g = s.newLeaseLocked(op)
			v.g.maybe = v.asked
			s.foreseeLocked(v.g, op, c.began)
		}
		v.g.over, v.g.pending = true, false
		// Where it was never sent, or has gone, nobody has to be asked.
		v.no, v.asked = v.asked&^v.g.maybe, v.g.maybe
	case cache.OpDowngrade:
		if v.g != nil {
			v.g.mode, v.g.lag = cache.Shared, v.g.maybe
		}
	}
}
