package redlock

import (
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// send asks the nodes what the votes' stages are about; false when there is
// nothing more to ask.
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
			j.put(c.op(i), part{v.g, int32(i), v.stage})
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

// op is what the nodes are asked in the stage of op i.
func (c *call) op(i int) upstream.Op {
	op, v := c.ops[i], &c.votes[i]
	op.Ref, op.Gen = nil, 0
	op.TTL = c.s.nodeTTL(op.TTL)
	op.Token <<= againBits
	if v.g != nil {
		op.Token = v.g.number
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

// await takes answers in until a quorum has decided every op, and a little
// longer when the other nodes may answer soon. over says that ctx has ended
// before.
func (c *call) await(ctx context.Context) (over bool) {
	var grace <-chan time.Time
	start := time.Now()
	for {
		c.takeIn()
		decided := !slices.ContainsFunc(c.votes, func(v vote) bool { return v.verdict() == open })
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
			c.takeIn()
			return !decided
		}
	}
}

// worthWaiting says that a node may answer soon that has not: one that still owes
// an answer to an earlier call is not waited for again.
func (c *call) worthWaiting() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, j := range c.jobs {
		if !j.waited && slices.Contains(j.n.running, j) && !j.n.lateLocked() {
			return true
		}
	}
	return len(c.arrived) > 0
}

// lateLocked says that n owes answers that nobody waits for any more.
func (n *node) lateLocked() bool {
	return slices.ContainsFunc(n.running, func(j *job) bool { return j.call == nil && j.lane != laneBack })
}

// takeIn counts the answers that have come.
func (c *call) takeIn() {
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
			if r.Err != nil && c.whys[n] == nil {
				c.whys[n] = r.Err
			}
			if p.stage == v.stage {
				if p.g != nil && p.g.shaky.has(n) && (r.Status == cache.Granted || v.kind != cache.OpRelease && v.kind != cache.OpWithdraw && r.Status == cache.Done) {
					r.Status = cache.Unknown // a late release may end it there at any time
				}
				at := int(p.at) * len(c.s.nodes)
				v.count(n, r, c.bases[at:at+len(c.s.nodes)], c.lefts[at:at+len(c.s.nodes)])
			}
		}
	}
}

// turn takes op i to its next stage, or its end. over says that there is no time
// for another.
func (c *call) turn(i int, over bool) {
	op, v := &c.ops[i], &c.votes[i]
	said := v.verdict()
	acquire := op.Kind == cache.OpTry || op.Kind == cache.OpJoin
	switch v.stage {
	case asking:
		v.result = said
		if acquire && said == no {
			c.undo(v, said)
			break
		}
		v.stage = ended
		if said != yes || !acquire && op.Kind != cache.OpRenew && op.Kind != cache.OpDowngrade {
			break
		}
		if v.late = c.late(op, v); v.late {
			v.result = nothing
			if acquire {
				c.undo(v, nothing)
			}
			break
		}
		if acquire || op.Rebase {
			n := len(c.s.nodes)
			v.highest(c.bases[i*n : i*n+n])
			if !v.have.quorum(n) {
				v.next(writing, v.yes&^v.have)
			}
		}
	case writing:
		v.stage = ended
		v.late = said == yes && acquire && c.late(op, v)
		switch {
		case said == yes && !v.late:
			v.result = yes
		case acquire:
			c.undo(v, nothing)
		default:
			v.result = nothing
		}
	case undoing:
		v.stage = ended
	}
	if over && v.stage != ended {
		v.stage, v.result = ended, nothing
	}
}

func (v *vote) next(st stage, asked set) {
	v.stage, v.asked, v.sent, v.answered = st, asked, 0, 0
}

// undo releases what some nodes have granted, at the nodes where no call about it is in flight. At the others
// the release is pending.
func (c *call) undo(v *vote, result verdict) {
	asked := v.yes
	for _, j := range c.jobs {
		asked.drop(j.n.i)
	}
	v.result = result
	v.next(undoing, asked)
	if asked == 0 {
		v.stage = ended
	}
}

// late says that a quorum's word has come too late to count: when the TTL that was
// asked for was over, or, for a renewal, what it renews. Before that, each node
// that said yes has the token since the quorum before it, and nobody else can have
// had the key in between; after it, a node may have it from an acquire that it
// carried out late.
func (c *call) late(op *upstream.Op, v *vote) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	now := c.s.clock()
	until := cache.LeaseDeadline(c.began, int64(op.TTL))
	if op.Kind == cache.OpRenew || op.Kind == cache.OpDowngrade {
		until = cache.Forever
		if v.g != nil {
			until = v.g.until
		}
	}
	return now >= until
}
