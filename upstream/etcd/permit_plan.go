package etcd

import (
	"fmt"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// planPermitLocked says how to begin with an op about a semaphore, or answers it.
// It is called with lockKeys.mu held, as all here.
func (b *batch) planPermitLocked(st *step, op *upstream.Op) (ask bool) {
	switch {
	case op.Kind == cache.OpPeek:
		st.plan = planAny
		st.dir, _ = b.s.permits(op.Key)
		return true
	case op.Kind == cache.OpTry || op.Kind == cache.OpJoin:
		return b.planTakePermitLocked(st, op)
	case op.Kind == cache.OpDowngrade:
		b.fail(st, cache.Refused, fmt.Errorf("%w: a permit cannot be downgraded", ErrRefused))
		return false
	}
	// Nothing can stand of a token that is not known: the session is ours alone.
	var g *lockKey
	if m := b.s.lockKeys.sems[op.Key]; m != nil && m.sess == b.sess {
		g = m.tokens[op.Token]
	}
	switch {
	case g == nil && op.Kind == cache.OpWithdraw:
		b.answer(st, cache.Done)
		return false
	case g == nil:
		b.answer(st, cache.NotHeld)
		return false
	}
	b.aboutLocked(st, g)
	switch {
	case op.Kind != cache.OpRenew:
		g.leaving = true
		st.plan = planEnd
	case g.held:
		st.plan = planKeep
	case g.permit.unsure:
		st.plan = planSettle
	default:
		b.answer(st, cache.NotHeld)
		return false
	}
	return true
}

func (b *batch) planTakePermitLocked(st *step, op *upstream.Op) (ask bool) {
	if op.Limit == 0 {
		b.fail(st, cache.Refused, fmt.Errorf("%w: a semaphore of %q without permits", ErrRefused, op.Key))
		return false
	}
	m := b.s.semLocked(b.sess, op.Key)
	if m == nil {
		b.fail(st, cache.Refused, b.s.cfg.explain(ErrRefused, b.s.noSession()))
		return false
	}
	g := m.tokens[op.Token]
	if g == nil {
		g = m.addLocked(op.Token)
	}
	m.limit, g.permit.limit = int64(op.Limit), int64(op.Limit)
	b.aboutLocked(st, g)
	st.join = op.Kind == cache.OpJoin
	switch {
	case g.permit.unsure:
		st.plan = planSettle
	case g.held:
		st.plan = planHeld
	case st.queued && st.join && g.pred != "":
		st.plan = planStill
	case !st.queued && m.seen+1+m.limit/8 <= m.limit: // there was plenty of room
		m.seen++
		st.plan = planPut
	default:
		st.plan = planPlace
	}
	return true
}

// aboutLocked has st be about g.
func (b *batch) aboutLocked(st *step, g *lockKey) {
	st.g, st.dir, st.key, st.rev = g, g.dir, g.key, g.rev
	st.pred, st.predRev = g.pred, g.predRev
	st.queued = g.permit.queued
	if st.kind != cache.OpRenew {
		g.permit.busy = true
		b.permits = append(b.permits, g)
	}
	if len(b.s.lockKeys.doubts) > 0 {
		_, st.doubt = b.s.lockKeys.doubts[g.doubt()]
	}
}

func (g *lockKey) doubt() doubt { return doubt{g.lock, g.token, true} }

// endPermits forgets the tokens of which nothing is left behind by this batch.
func (b *batch) endPermits() {
	t := &b.s.lockKeys
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range b.permits {
		g.permit.busy = false
		if !g.held && !g.permit.queued && !g.permit.unsure {
			t.endLocked(g)
		}
	}
}

// next has st go on with p in the next round.
func (b *batch) next(st *step, p plan) {
	st.plan = p
	if st.g != nil {
		st.rev, st.queued = st.g.rev, st.g.permit.queued
	}
	b.steps = append(b.steps, *st)
}

// giveUp ends a step that has come to no end.
func (b *batch) giveUp(st *step, err error) {
	if st.g == nil {
		b.fail(st, cache.Unknown, err)
		return
	}
	b.s.lockKeys.mu.Lock()
	defer b.s.lockKeys.mu.Unlock()
	b.permitFailedLocked(st, cache.Unknown, err, b.sess.fence.Load())
}

// permitFailedLocked ends a step whose transaction has failed, which compared that
// fence.
func (b *batch) permitFailedLocked(st *step, status cache.Status, err error, fence int64) {
	g := st.g
	if g == nil {
		b.fail(st, status, err)
		return
	}
	if status == cache.Unknown {
		if st.takes() {
			b.s.lockKeys.doubts[g.doubt()] = fence
		}
		if st.plan < planRenew {
			g.permit.unsure = true
		}
	}
	if taking := st.kind == cache.OpTry || st.kind == cache.OpJoin; taking && g.permit.unsure {
		status = cache.Unknown // its key may stand
	}
	b.fail(st, status, err)
}

// permitNoSpaceLocked is for a step that may have been carried out or not, as the
// server's database is full.
func (b *batch) permitNoSpaceLocked(st *step, err error) {
	switch {
	case st.doubt: // that writes, too
		b.permitFailedLocked(st, cache.Unknown, err, b.sess.fence.Load())
	case st.plan == planEnd:
		st.again = true
		b.next(st, planEnd)
	default:
		st.g.permit.unsure, st.err = true, err
		b.next(st, planSettle)
	}
}
