package redlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// graceMin and graceMax bound how long a call waits for the other nodes once its quorum has
// decided. Between these bounds, it waits as long as the quorum took. It does not wait for nodes
// that have not answered an earlier call.
const (
	graceMin = time.Millisecond
	graceMax = 50 * time.Millisecond
)

// call is one Apply. Only the caller's goroutine uses its votes. Store.mu guards arrived, to which
// the nodes add.
type call struct {
	s        *Store
	ops      []upstream.Op
	results  []upstream.Result
	votes    []vote
	began    int64 // boot clock
	lane     lane
	jobs     []*job  // whose answers have not been collected
	down     set     // nodes that were found to be down
	nodeErrs []error // the first error of each node
	err      error   // of the first op that was refused before it was sent

	arrived []*job // guarded by Store.mu
	woken   chan struct{}
}

// wake wakes the caller. It does not block.
func (c *call) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// Apply asks all nodes at once and answers when a quorum has decided every op. The remaining calls
// continue in the background.
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
		over := c.awaitQuorum(ctx)
		for i := range c.votes {
			c.advance(i, over)
		}
		if over {
			break
		}
	}
	return c.end()
}

func (s *Store) newCall(ops []upstream.Op, results []upstream.Result) *call {
	c := &call{s: s, ops: ops, results: results, began: s.clock(), woken: make(chan struct{}, 1),
		nodeErrs: make([]error, len(s.nodes)), votes: make([]vote, len(ops)), lane: laneRenew}
	n := len(s.nodes)
	bases, lefts := make([]uint64, len(ops)*n), slices.Repeat([]int64{cache.Forever}, len(ops)*n)
	for i := range ops {
		results[i] = upstream.Result{Left: -1}
		c.votes[i].bases, c.votes[i].lefts = bases[i*n:i*n+n], lefts[i*n:i*n+n]
		if ops[i].Kind != cache.OpRenew {
			c.lane = laneMain
		}
	}
	return c
}

// refuse ends op i before any part of it was sent.
func (c *call) refuse(i int, err error) {
	c.votes[i].stage = ended
	c.results[i] = upstream.Result{Status: cache.Refused, Left: -1, Err: err}
	if c.err == nil {
		c.err = err
	}
}

// begin looks up the leases and determines which nodes to ask.
func (c *call) begin() {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range c.ops {
		op, v := &c.ops[i], &c.votes[i]
		v.kind, v.nodes, v.asked = op.Kind, len(s.nodes), allNodes(len(s.nodes))
		if op.TTL > s.cfg.MaxTTL && op.Kind != cache.OpPeek && op.Kind != cache.OpRelease &&
			op.Kind != cache.OpWithdraw {
			c.refuse(i, fmt.Errorf("redlock: a TTL of %v is longer than max_ttl, %v, which "+
				"restarted nodes wait out", op.TTL, s.cfg.MaxTTL))
			continue
		}
		if c.inOtherModeLocked(i) {
			continue
		}
		if c.findLeaseLocked(op, v); v.lease != nil {
			v.lease.calls++
		}
	}
}

// inOtherModeLocked refuses op i if it acquires a key that its token holds in the other mode. The
// nodes are not asked, because a refusal by a quorum would release the token.
func (c *call) inOtherModeLocked(i int) bool {
	op, l := &c.ops[i], c.s.leaseLocked(&c.ops[i])
	status := cache.Busy
	switch op.Kind {
	case cache.OpTry:
	case cache.OpJoin:
		status = cache.Queued
	default:
		return false
	}
	if l == nil || l.obsolete || l.mode == op.Mode || c.began >= l.until {
		return false
	}
	c.votes[i].stage = ended
	c.results[i] = upstream.Result{Status: status, Left: l.until - c.began}
	return true
}

// findLeaseLocked finds or makes the lease of op, and records the intent of op.
func (c *call) findLeaseLocked(op *upstream.Op, v *vote) {
	s := c.s
	switch op.Kind {
	case cache.OpPeek:
		return
	case cache.OpTry, cache.OpJoin:
		v.lease = s.acquireLocked(op)
		return
	}
	v.lease = s.leaseLocked(op)
	switch op.Kind {
	case cache.OpRelease, cache.OpWithdraw:
		if v.lease == nil { // of an earlier run of this daemon, or released long ago
			v.lease = s.newLeaseLocked(op)
			v.lease.mayHave = v.asked
			s.extendEndLocked(v.lease, op, c.began)
		}
		v.lease.obsolete, v.lease.reusable = true, false
		// Nodes that cannot have the token need not be asked.
		v.no, v.asked = v.asked&^v.lease.mayHave, v.lease.mayHave
	case cache.OpDowngrade:
		if v.lease != nil {
			v.lease.mode, v.lease.exclusiveAt = cache.Shared, v.lease.mayHave
		}
	}
}
