package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

var (
	// ErrNoQuorum means that fewer than a quorum of nodes answered.
	ErrNoQuorum = errors.New("no quorum of redlock nodes")
	// ErrLate means that a quorum answered too late to count.
	ErrLate = errors.New("the redlock nodes' answers came too late")
	// ErrSameServer means that two nodes are the same server.
	ErrSameServer = errors.New("two redlock nodes are the same server, which has one vote")

	errClosed = errors.New("the store is closed")
)

// end sets the result of every op and leaves unfinished work to the background.
func (c *call) end() error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	for _, j := range c.jobs {
		if !s.dropLocked(j) && slices.Contains(j.n.running, j) {
			j.abandonLocked()
		}
	}
	c.jobs = nil
	why := c.storeError()
	h := make(healings, len(s.nodes))
	for i := range c.votes {
		if c.results[i].Status != cache.Unknown { // in begin
			continue
		}
		if l := c.votes[i].lease; l != nil {
			l.calls--
		}
		c.answer(i, why)
		if l := c.updateLease(i); l != nil {
			s.trackLocked(l)
		}
		if c.votes[i].heals() && c.results[i].Status == cache.Done {
			h.add(c, i, now)
		}
	}
	for i := range h {
		if j := h[i].job; j != nil {
			j.abandonLocked()
			s.submitLocked(j, now)
		}
	}
	if errors.Is(why, upstream.ErrDown) {
		return why
	}
	return c.err
}

// heals reports whether a node has lost a lease that the op of v keeps.
func (v *vote) heals() bool {
	keeps := v.kind == cache.OpRenew || v.kind == cache.OpDowngrade
	return keeps && v.no != 0 && v.lease != nil && !v.lease.obsolete
}

// storeError returns the error of the store as a whole, or else of the ops, or nil.
func (c *call) storeError() error {
	n := len(c.s.nodes)
	var each []string
	var any error
	for i, err := range c.nodeErrs {
		if err != nil {
			any = err
			each = append(each, err.Error())
		} else if c.down.has(i) {
			each = append(each, c.s.nodes[i].host)
		}
	}
	if c.down.count() > n/2 {
		return fmt.Errorf("%w: %w: %d of %d do not vote: %s",
			upstream.ErrDown, ErrNoQuorum, c.down.count(), n, strings.Join(each, "; "))
	}
	if any == nil {
		return nil
	}
	return fmt.Errorf("redlock: %s", strings.Join(each, "; "))
}

// answer sets the result of op i.
func (c *call) answer(i int, why error) {
	op, v, r := &c.ops[i], &c.votes[i], &c.results[i]
	r.Contended = v.contended
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		c.answerAcquire(op, v, r, why)
	case cache.OpPeek:
		c.answerPeek(v, r, why)
	case cache.OpRelease, cache.OpWithdraw:
		switch {
		case v.result != yes:
			c.failed(r, v, v.refused == v.asked, why)
		case op.Kind == cache.OpRelease && v.no.quorum(v.nodes):
			r.Status = cache.NotHeld
		default:
			r.Status = cache.Done
		}
	default:
		switch v.result {
		case yes:
			r.Status = cache.Done
			if op.Rebase {
				r.Base = v.base
			}
		case no:
			r.Status = cache.NotHeld
		default:
			c.failed(r, v, v.refused == v.asked, why)
		}
	}
}

func (c *call) answerAcquire(op *upstream.Op, v *vote, r *upstream.Result, why error) {
	switch {
	case v.result == yes:
		r.Status, r.Base = cache.Granted, v.base
	case v.result == no && !(v.refused | v.unknown).quorum(v.nodes):
		r.Status, r.Left = cache.Busy, v.soonest()
		if op.Kind == cache.OpJoin {
			r.Status = cache.Queued
		}
	default:
		c.failed(r, v, v.lease.mayHave == 0, why)
	}
}

func (c *call) answerPeek(v *vote, r *upstream.Result, why error) {
	switch v.result {
	case yes:
		r.Status = cache.Done
	case no:
		r.Status, r.Left = cache.Busy, v.soonest()
		if 2*v.shared.count() > v.no.count() {
			r.Mode = cache.Shared
		}
	default:
		c.failed(r, v, true, why)
	}
}

// failed sets the result of an op that failed, or whose outcome is unknown. nothing means that
// certainly nothing was done.
func (c *call) failed(r *upstream.Result, v *vote, nothing bool, why error) {
	r.Status, r.Left, r.Err = cache.Unknown, -1, why
	if nothing {
		r.Status = cache.Refused
	}
	if v.tooLate {
		r.Err = ErrLate
	}
	if r.Err == nil {
		r.Err = ErrNoQuorum
	}
	if c.err == nil {
		c.err = r.Err
	}
}

// updateLease applies the result of op i to its lease. It returns the lease to check for pending
// releases, if any.
func (c *call) updateLease(i int) *lease {
	op, v, r := &c.ops[i], &c.votes[i], &c.results[i]
	s, l := c.s, v.lease
	until := cache.LeaseDeadline(c.began, int64(op.TTL))
	switch op.Kind {
	case cache.OpPeek:
		return nil
	case cache.OpTry, cache.OpJoin:
		l.obsolete = r.Status != cache.Granted
		l.reusable = r.Status == cache.Queued || r.Status == cache.Unknown ||
			r.Status == cache.Refused && l.reusable
		if !l.obsolete {
			l.until = max(l.until, until)
		}
	case cache.OpRenew, cache.OpDowngrade:
		if l == nil && r.Status == cache.Done { // of an earlier run of this daemon
			l = s.newLeaseLocked(op)
			l.mayHave = allNodes(len(s.nodes)) &^ v.no
			s.extendEndLocked(l, op, c.began)
		}
		switch {
		case l == nil:
		case r.Status == cache.Done:
			l.until = max(l.until, until)
		case r.Status == cache.NotHeld: // its remains would block other hosts
			l.obsolete = true
		}
	}
	return l
}

// healings has an entry for each node. Its job acquires leases that a quorum has just confirmed at
// a node that has lost them, so that they survive further losses.
type healings []struct {
	job  *job            // nil if there is nothing to heal
	used map[string]bool // keys that calls to the node are about
}

// add requests that the lease of op i is healed at the nodes that do not hold it, unless a call
// about its key is in flight there.
func (h healings) add(c *call, i int, now int64) {
	op, v, s := &c.ops[i], &c.votes[i], c.s
	for _, n := range s.nodes {
		if !v.no.has(n.i) || v.lease.lateRelease.has(n.i) || now < n.downUntil || n.backgroundLocked() {
			continue
		}
		at := &h[n.i]
		if at.used == nil {
			at.used = n.busyKeysLocked()
		}
		if at.used[op.Key] {
			continue
		}
		if at.job == nil {
			at.job = &job{n: n, lane: laneBackground}
		}
		at.job.put(upstream.Op{Kind: cache.OpTry, Mode: v.lease.mode, Key: op.Key, Token: v.lease.number,
			TTL:   s.nodeTTL(op.TTL),
			Floor: max(op.Floor, v.base)}, part{lease: v.lease})
	}
}

// backgroundLocked reports whether a background job is queued or in flight at n.
func (n *node) backgroundLocked() bool {
	return slices.ContainsFunc(n.jobsLocked(), func(j *job) bool { return j.lane == laneBackground })
}
