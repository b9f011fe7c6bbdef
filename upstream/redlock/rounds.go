package redlock

import (
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// send sends the requests of the present stages to the nodes. It returns false if there are none.
func (c *call) send() bool {
	jobs := make([]*job, 0, len(c.s.nodes))
	for _, n := range c.s.nodes {
		j := &job{n: n, call: c, lane: c.lane}
		for i := range c.votes {
			v := &c.votes[i]
			if v.stage == ended || !v.asked.has(n.i) || v.sent.has(n.i) {
				continue
			}
			if j.ops == nil {
				j.ops, j.parts = make([]upstream.Op, 0, len(c.ops)), make([]part, 0, len(c.ops))
			}
			v.sent.add(n.i)
			j.put(c.op(i), part{v.lease, int32(i), v.stage})
		}
		if j.ops != nil {
			jobs = append(jobs, j)
		}
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	for _, j := range jobs {
		c.jobs = append(c.jobs, j)
		s.submitLocked(j, now)
	}
	return slices.ContainsFunc(c.votes, func(v vote) bool { return v.stage != ended })
}

// op returns the op that the nodes are asked to carry out in the stage of op i.
func (c *call) op(i int) upstream.Op {
	op, v := c.ops[i], &c.votes[i]
	op.Ref, op.Gen = nil, 0
	op.TTL = c.s.nodeTTL(op.TTL)
	op.Token <<= againBits
	if v.lease != nil {
		op.Token = v.lease.number
	}
	switch {
	case v.stage == writing:
		op.Kind, op.Rebase, op.Floor = cache.OpRenew, true, v.base-1
	case v.stage == undoing, op.Kind == cache.OpWithdraw:
		op.Kind = cache.OpRelease
	case op.Kind == cache.OpJoin:
		op.Kind = cache.OpTry
	}
	return op
}

// awaitQuorum collects answers until a quorum has decided every op, and a little longer if other
// nodes may answer soon. over reports that ctx ended first.
func (c *call) awaitQuorum(ctx context.Context) (over bool) {
	var grace <-chan time.Time
	start := time.Now()
	for {
		c.collectAnswers()
		decided := !slices.ContainsFunc(c.votes, func(v vote) bool { return v.outcome() == undecided })
		if decided {
			if !c.worthWaiting() {
				return false
			}
			if grace == nil {
				t := time.NewTimer(max(c.s.grace, min(time.Since(start), graceMax)))
				defer t.Stop()
				grace = t.C
			}
		}
		select {
		case <-c.woken:
		case <-grace:
			for _, j := range c.jobs {
				j.waited = true
			}
			return false
		case <-ctx.Done():
			c.collectAnswers()
			return !decided
		}
	}
}

// worthWaiting reports whether another node may answer soon. A node that has not answered an
// earlier call does not count.
func (c *call) worthWaiting() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, j := range c.jobs {
		if !j.waited && slices.Contains(j.n.running, j) && !j.n.overdueLocked() {
			return true
		}
	}
	return len(c.arrived) > 0
}

// overdueLocked reports whether n has not answered calls that were abandoned.
func (n *node) overdueLocked() bool {
	return slices.ContainsFunc(n.running, func(j *job) bool {
		return j.call == nil && j.lane != laneBackground
	})
}

// collectAnswers counts the answers that have arrived.
func (c *call) collectAnswers() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	arrived := c.arrived
	c.arrived = nil
	for _, j := range arrived {
		n := j.n.i
		c.jobs = slices.DeleteFunc(c.jobs, func(o *job) bool { return o == j })
		if j.down {
			c.down.add(n)
		}
		for k := range j.parts {
			p, r := &j.parts[k], &j.results[k]
			v := &c.votes[p.at]
			if r.Err != nil && c.nodeErrs[n] == nil {
				c.nodeErrs[n] = r.Err
			}
			if p.stage == v.stage {
				if p.lease != nil && p.lease.lateRelease.has(n) &&
					(r.Status == cache.Granted || v.kind != cache.OpRelease && v.kind != cache.OpWithdraw &&
						r.Status == cache.Done) {
					r.Status = cache.Unknown // a late release may end it there at any time
				}
				v.count(n, r)
			}
		}
	}
}

// advance moves op i to its next stage, or ends it. over says that there is no time for another
// stage.
func (c *call) advance(i int, over bool) {
	op, v := &c.ops[i], &c.votes[i]
	said := v.outcome()
	acquire := op.Kind == cache.OpTry || op.Kind == cache.OpJoin
	switch v.stage {
	case asking:
		c.endAsking(op, v, said, acquire)
	case writing:
		v.stage = ended
		v.tooLate = said == yes && acquire && c.tooLate(op, v)
		switch {
		case said == yes && !v.tooLate:
			v.result = yes
		case acquire:
			c.undo(v, noQuorum)
		default:
			v.result = noQuorum
		}
	case undoing:
		v.stage = ended
	}
	if over && v.stage != ended {
		v.stage, v.result = ended, noQuorum
	}
}

// endAsking ends the stage asking of an op. said is the outcome of the vote.
func (c *call) endAsking(op *upstream.Op, v *vote, said outcome, acquire bool) {
	v.result = said
	if acquire && said == no {
		c.undo(v, said)
		return
	}
	v.stage = ended
	if said != yes || !acquire && op.Kind != cache.OpRenew && op.Kind != cache.OpDowngrade {
		return
	}
	if v.tooLate = c.tooLate(op, v); v.tooLate {
		v.result = noQuorum
		if acquire {
			c.undo(v, noQuorum)
		}
		return
	}
	if acquire || op.Rebase {
		v.highest()
		if !v.have.quorum(v.nodes) {
			v.enter(writing, v.yes&^v.have)
		}
	}
}

func (v *vote) enter(st stage, asked set) {
	v.stage, v.asked, v.sent, v.answered = st, asked, 0, 0
}

// undo releases the grants of some nodes. It asks the nodes where no call about it is in flight; at
// the others the release stays pending.
func (c *call) undo(v *vote, result outcome) {
	asked := v.yes
	for _, j := range c.jobs {
		asked.drop(j.n.i)
	}
	v.result = result
	v.enter(undoing, asked)
	if asked == 0 {
		v.stage = ended
	}
}

// tooLate reports that a quorum answered too late to count: after the end of the TTL of an acquire,
// or after the end of the lease that is renewed. Until then, each node that said yes has had the
// token since the quorum before, so that no other host can have had the key in between. Later, a
// node may have it from an acquire that it carried out late.
func (c *call) tooLate(op *upstream.Op, v *vote) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	now := c.s.clock()
	until := cache.LeaseDeadline(c.began, int64(op.TTL))
	if op.Kind == cache.OpRenew || op.Kind == cache.OpDowngrade {
		until = cache.Forever
		if v.lease != nil {
			until = v.lease.until
		}
	}
	return now >= until
}
