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
	// ErrNoQuorum says that fewer than a quorum of nodes answered.
	ErrNoQuorum = errors.New("no quorum of redlock nodes")
	// ErrLate says that a quorum answered, but too late to count.
	ErrLate = errors.New("the redlock nodes' answers came too late")
	// ErrSameServer says that two nodes are one server.
	ErrSameServer = errors.New("two redlock nodes are the same server, which has one vote")

	errClosed = errors.New("the store is closed")
)

// end gives every op its result and leaves what is not finished to the
// background.
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
	why := c.why()
	var h healing
	for i := range c.votes {
		if c.results[i].Status == cache.Refused { // in begin
			continue
		}
		if g := c.votes[i].g; g != nil {
			g.calls--
		}
		c.answer(i, why)
		if g := c.account(i); g != nil {
			s.settleLocked(g)
		}
		if v := &c.votes[i]; v.no != 0 && v.g != nil && !v.g.over && c.results[i].Status == cache.Done &&
			(v.kind == cache.OpRenew || v.kind == cache.OpDowngrade) {
			h.add(c, i, now)
		}
	}
	for n, j := range h.jobs {
		if len(j.ops) > 0 {
			j.n = s.nodes[n]
			j.abandonLocked()
			s.submitLocked(j, now)
		}
	}
	if errors.Is(why, upstream.ErrDown) {
		return why
	}
	return c.err
}

// why is what is wrong with the store as a whole, or else with what was asked;
// nil when nothing is.
func (c *call) why() error {
	n := len(c.s.nodes)
	var each []string
	var any error
	for i, err := range c.whys {
		if err != nil {
			any = err
			each = append(each, err.Error())
		} else if c.down.has(i) {
			each = append(each, c.s.nodes[i].host)
		}
	}
	if c.down.count() > n/2 {
		return fmt.Errorf("%w: %w: %d of %d do not vote: %s", upstream.ErrDown, ErrNoQuorum, c.down.count(), n, strings.Join(each, "; "))
	}
	if any == nil {
		return nil
	}
	return fmt.Errorf("redlock: %s", strings.Join(each, "; "))
}

// answer is the result of op i.
func (c *call) answer(i int, why error) {
	op, v, r := &c.ops[i], &c.votes[i], &c.results[i]
	n := len(c.s.nodes)
	lefts := c.lefts[i*n : i*n+n]
	r.Contended = v.wanted
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		switch {
		case v.result == yes:
			r.Status, r.Base = cache.Granted, v.base
		case v.result == no && !(v.refused | v.unknown).quorum(n):
			r.Status, r.Left = cache.Busy, soonest(lefts)
			if op.Kind == cache.OpJoin {
				r.Status = cache.Queued
			}
		default:
			c.failed(r, v, v.g.maybe == 0, why)
		}
	case cache.OpPeek:
		switch v.result {
		case yes:
			r.Status = cache.Done
		case no:
			r.Status, r.Left = cache.Busy, soonest(lefts)
			if 2*v.shared.count() > v.no.count() {
				r.Mode = cache.Shared
			}
		default:
			c.failed(r, v, true, why)
		}
	case cache.OpRelease, cache.OpWithdraw:
		switch {
		case v.result != yes:
			c.failed(r, v, v.refused == v.asked, why)
		case op.Kind == cache.OpRelease && v.no.quorum(n):
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

// failed is a result of what did not happen, or is not known to have. nothing says
// that it is sure that nothing was done.
func (c *call) failed(r *upstream.Result, v *vote, nothing bool, why error) {
	r.Status, r.Left, r.Err = cache.Unknown, -1, why
	if nothing {
		r.Status = cache.Refused
	}
	if v.late {
		r.Err = ErrLate
	}
	if r.Err == nil {
		r.Err = ErrNoQuorum
	}
	if c.err == nil {
		c.err = r.Err
	}
}

// account keeps what op i's result means for its token; it returns the lease that
// has to be looked at, if any.
func (c *call) account(i int) *lease {
	op, v, r := &c.ops[i], &c.votes[i], &c.results[i]
	s, g := c.s, v.g
	until := cache.LeaseDeadline(c.began, int64(op.TTL))
	switch op.Kind {
	case cache.OpPeek:
		return nil
	case cache.OpTry, cache.OpJoin:
		g.over = r.Status != cache.Granted
		g.pending = r.Status == cache.Queued || r.Status == cache.Unknown || r.Status == cache.Refused && g.pending
		if !g.over {
			g.until = max(g.until, until)
		}
	case cache.OpRenew, cache.OpDowngrade:
		if g == nil && r.Status == cache.Done { // of an earlier run of this daemon
			g = s.newLeaseLocked(op)
			g.maybe = first(len(s.nodes)) &^ v.no
			s.foreseeLocked(g, op, c.began)
		}
		switch {
		case g == nil:
		case r.Status == cache.Done:
			g.until = max(g.until, until)
		case r.Status == cache.NotHeld: // what is left of it is in others' way
			g.over = true
		}
	}
	return g
}

// healing is what has leases that a quorum has just confirmed taken anew at the
// nodes that have lost them, so that they bear further losses.
type healing struct {
	jobs []*job
	used []map[string]bool // keys that the nodes are being asked about
}

// add has op i's lease healed where it is not held, and nothing else is on its way.
func (h *healing) add(c *call, i int, now int64) {
	op, v, s := &c.ops[i], &c.votes[i], c.s
	if h.jobs == nil {
		h.jobs, h.used = make([]*job, len(s.nodes)), make([]map[string]bool, len(s.nodes))
		for n := range h.jobs {
			h.jobs[n] = &job{lane: laneBack}
		}
	}
	for _, n := range s.nodes {
		if !v.no.has(n.i) || v.g.shaky.has(n.i) || now < n.until || n.backLocked() {
			continue
		}
		if h.used[n.i] == nil {
			h.used[n.i] = map[string]bool{}
			n.usedLocked(h.used[n.i])
		}
		if !h.used[n.i][op.Key] {
			h.jobs[n.i].put(upstream.Op{Kind: cache.OpTry, Mode: v.g.mode, Key: op.Key, Token: v.g.number, TTL: s.nodeTTL(op.TTL),
				Floor: max(op.Floor, v.base)}, part{g: v.g})
		}
	}
}

// backLocked says that something is on its way to n in the background.
func (n *node) backLocked() bool {
	for _, js := range [][]*job{n.running, n.queue} {
		if slices.ContainsFunc(js, func(j *job) bool { return j.lane == laneBack }) {
			return true
		}
	}
	return false
}
