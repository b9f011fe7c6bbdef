package embedded

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// permits is one semaphore.
type permits struct {
	held   map[uint64]struct{} // tokens
	queued []uint64            // tokens, in the order in which they came
}

// permit carries out op about a permit, as apply does about a lease; d.mu is held.
func (s *Store) permit(d *shard, op *upstream.Op, res *upstream.Result, now, until int64, expired bool) bool {
	p := d.permits[op.Key]
	if p == nil {
		p = &permits{held: make(map[uint64]struct{})}
	}
	_, mine := p.held[op.Token]
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		return s.acquirePermit(d, p, op, res, now, until, mine)
	case cache.OpRelease, cache.OpWithdraw:
		s.releasePermit(d, p, op, res, mine, expired)
	case cache.OpRenew:
		return s.renew(op, res, now, until, mine)
	case cache.OpPeek:
		s.peek(res, now, until, 0, len(p.held) > 0)
		res.Mode = cache.Permit
	default:
		res.Status, res.Err = cache.Refused, fmt.Errorf("operation %v is not for permits", op.Kind)
	}
	return true
}

func (s *Store) acquirePermit(d *shard, p *permits, op *upstream.Op, res *upstream.Result, now, until int64, mine bool) bool {
	n := &s.session
	if left := n.waiting(now); left > 0 {
		if op.Kind == cache.OpJoin {
			s.queuePermit(d, p, op, res, int64(left))
			return true
		}
		res.Status, res.Err = cache.Refused, waitingError(left)
		return true
	}
	before := slices.Index(p.queued, op.Token)
	if before < 0 {
		before = len(p.queued)
	}
	if !mine && len(p.held)+before >= int(op.Limit) {
		if op.Kind == cache.OpJoin {
			s.queuePermit(d, p, op, res, until-now)
			return true
		}
		s.leaveQueue(d, p, op)
		res.Status, res.Left = cache.Busy, until-now
		return true
	}
	if !n.fresh(until, now) {
		return false
	}
	base := n.nextBase(op.Floor)
	if base == 0 {
		return false
	}
	if !mine {
		n.held.Add(1)
	}
	if n.until.Load() < until {
		if !mine { // as acquire does
			n.held.Add(-1)
		}
		return false
	}
	if d.permits == nil {
		d.permits = make(map[string]*permits)
	}
	d.permits[op.Key] = p
	p.held[op.Token] = struct{}{}
	s.leaveQueue(d, p, op)
	res.Status, res.Base, res.Session = cache.Granted, base, until
	return true
}

func (s *Store) queuePermit(d *shard, p *permits, op *upstream.Op, res *upstream.Result, left int64) {
	if d.permits == nil {
		d.permits = make(map[string]*permits)
	}
	d.permits[op.Key] = p
	if !slices.Contains(p.queued, op.Token) {
		p.queued = append(p.queued, op.Token)
	}
	res.Status, res.Left = cache.Queued, left
}

// leaveQueue takes op's token out of the queue, and forgets a semaphore that nobody
// has or wants.
func (s *Store) leaveQueue(d *shard, p *permits, op *upstream.Op) (was bool) {
	if i := slices.Index(p.queued, op.Token); i >= 0 {
		p.queued = slices.Delete(p.queued, i, i+1)
		was = true
	}
	if len(p.held) == 0 && len(p.queued) == 0 {
		delete(d.permits, op.Key)
	}
	return was
}

func (s *Store) releasePermit(d *shard, p *permits, op *upstream.Op, res *upstream.Result, mine, expired bool) {
	if op.Kind == cache.OpWithdraw {
		res.Status = cache.Done
	} else {
		res.Status = cache.NotHeld
	}
	if mine {
		if !expired { // else it had ended already
			res.Status = cache.Done
		}
		delete(p.held, op.Token)
		s.session.held.Add(-1)
	}
	if was := s.leaveQueue(d, p, op); mine || was {
		s.wake(op.Key, p)
	}
}

// wake hints who queues that there may be a permit: how many there are is in their ops.
func (s *Store) wake(key string, p *permits) {
	if len(p.queued) > 0 {
		s.hint(cache.Permit, key)
	}
}
