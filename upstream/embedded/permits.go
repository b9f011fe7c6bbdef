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
	queued []uint64            // tokens, in order of arrival
}

// permit carries out an op on a permit.
func (r *request) permit(op *upstream.Op, res *upstream.Result) bool {
	p := r.shard.permits[op.Key]
	if p == nil {
		p = &permits{held: make(map[uint64]struct{})}
	}
	_, mine := p.held[op.Token]
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		return r.acquirePermit(op, res, p, mine)
	case cache.OpRelease, cache.OpWithdraw:
		r.releasePermit(op, res, p, mine)
	case cache.OpRenew:
		return r.renew(op, res, mine)
	case cache.OpPeek:
		left, until := r.leftBy(op.Key, cache.Permit)
		r.peek(res, len(p.held)+left > 0, cache.Permit)
		r.leftUntil(res, until)
		res.Mode = cache.Permit
	default:
		res.Status = cache.Refused
		res.Err = fmt.Errorf("operation %v is not for permits", op.Kind)
	}
	return true
}

func (r *request) acquirePermit(op *upstream.Op, res *upstream.Result, p *permits, mine bool) bool {
	before := slices.Index(p.queued, op.Token)
	if before < 0 {
		before = len(p.queued)
	}
	left, until := r.leftBy(op.Key, cache.Permit)
	full := !mine && len(p.held)+left+before >= int(op.Limit)
	if op.Kind == cache.OpJoin && (r.waiting() || full) {
		r.keep(op, p)
		if !slices.Contains(p.queued, op.Token) {
			p.queued = append(p.queued, op.Token)
		}
		r.queued(res)
		r.leftUntil(res, until)
		return true
	}
	if r.waiting() || full {
		if !r.waiting() {
			r.leaveQueue(op, p)
		}
		r.refuse(res)
		r.leftUntil(res, until)
		return true
	}
	if !r.grant(op, res, mine) {
		return false
	}
	r.keep(op, p)
	p.held[op.Token] = struct{}{}
	r.leaveQueue(op, p)
	return true
}

// keep puts p into the shard.
func (r *request) keep(op *upstream.Op, p *permits) {
	if r.shard.permits == nil {
		r.shard.permits = make(map[string]*permits)
	}
	r.shard.permits[op.Key] = p
}

// leaveQueue removes the op's token from the queue, and the semaphore if it is unused. It returns
// whether the token was queued.
func (r *request) leaveQueue(op *upstream.Op, p *permits) (was bool) {
	if i := slices.Index(p.queued, op.Token); i >= 0 {
		p.queued = slices.Delete(p.queued, i, i+1)
		was = true
	}
	if len(p.held) == 0 && len(p.queued) == 0 {
		delete(r.shard.permits, op.Key)
	}
	return was
}

func (r *request) releasePermit(op *upstream.Op, res *upstream.Result, p *permits, mine bool) {
	r.released(op, res, mine)
	delete(p.held, op.Token)
	r.unkeep(op)
	if was := r.leaveQueue(op, p); mine || was {
		r.hintQueued(op.Key, p)
	}
}

// hintQueued sends a hint that a permit may be available, if any token is queued. The ops of the
// queued tokens have the limit of permits.
func (s *Store) hintQueued(key string, p *permits) {
	if len(p.queued) > 0 {
		s.hint(cache.Permit, key)
	}
}
