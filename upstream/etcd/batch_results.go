package etcd

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// fail ends a step with an error. The first error is kept for logs; one that says that the store is
// down takes precedence.
func (b *batch) fail(st *step, status cache.Status, err error) {
	b.results[st.i] = upstream.Result{Status: status, Left: -1, Err: err}
	if b.err == nil || errors.Is(err, upstream.ErrDown) && !errors.Is(b.err, upstream.ErrDown) {
		b.err = err
	}
}

// finish ends a step with a status.
func (b *batch) finish(st *step, status cache.Status) {
	b.results[st.i] = upstream.Result{Status: status, Left: -1}
}

// readLocked reads the answer to one transaction. The functions in this file whose names end in
// Locked are called with lockKeys.mu held.
func (b *batch) readLocked(p *part) {
	switch {
	case p.err != nil:
		b.failedLocked(p)
	case b.reading(p) && p.about != nil:
		b.readPermitsLocked(p)
	case b.reading(p):
		for i := range p.steps {
			b.readStepLocked(&p.steps[i], p.resp.Responses[p.at[i]:])
		}
	case !p.resp.Succeeded:
		b.fenceFailedLocked(p)
	default:
		if p.moveFence {
			b.fenceMovedLocked(p)
		}
		if p.about != nil {
			b.wrotePermitsLocked(p)
			return
		}
		for i := range p.steps {
			r := p.resp.Responses
			at := i
			if p.group > 0 {
				r, at = nested(r[i/p.group]).Responses, i%p.group
			}
			b.wroteLocked(&p.steps[i], r[at], p.resp.Header.Revision)
		}
	}
}

// fenceFailedLocked handles a transaction whose compare of the session's key failed. It changed
// nothing. The key was written again meanwhile, or it is gone.
func (b *batch) fenceFailedLocked(p *part) {
	if kv := kvs(p.resp.Responses[0]); len(kv) > 0 {
		raise(&b.sess.fence, kv[0].ModRevision)
		b.steps = append(b.steps, p.steps...)
		return
	}
	b.s.wake()
	for i := range p.steps {
		if st := &p.steps[i]; st.takes() {
			err := b.s.cfg.explain(ErrRefused, fmt.Errorf("%w: its key %s is gone",
				ErrSession, b.sess.key))
			b.stepFailedLocked(st, cache.Refused, err, p.fence)
		} else {
			b.steps = append(b.steps, *st)
		}
	}
}

// fenceMovedLocked notes that the session's key has been written again, or does not exist and can
// only be written later. No request that compares an earlier revision can succeed any more.
func (b *batch) fenceMovedLocked(p *part) {
	rev := p.resp.Header.Revision
	if last := nested(p.resp.Responses[len(p.resp.Responses)-1]); last.Succeeded {
		raise(&b.sess.fence, rev)
	}
	for d, fence := range b.s.lockKeys.unresolved {
		if fence < rev {
			delete(b.s.lockKeys.unresolved, d)
		}
	}
}

// next makes st continue with action a in the next round.
func (b *batch) next(st *step, a action) {
	st.action = a
	if st.g != nil {
		st.rev, st.queued = st.g.rev, st.g.permit.queued
	}
	b.steps = append(b.steps, *st)
}

// failedLocked handles the error of a transaction.
func (b *batch) failedLocked(p *part) {
	err := p.err
	switch {
	case is(err, rpctypes.ErrGRPCTooManyOps) && p.maxOps > 2*depth:
		b.s.maxOps.CompareAndSwap(p.maxOps, max(2*depth, p.maxOps/2))
		b.steps = append(b.steps, p.steps...)
		return
	case tooLarge(err) && len(p.steps) > 1:
		b.s.maxBytes.CompareAndSwap(p.maxBytes, p.maxBytes/2)
		b.steps = append(b.steps, p.steps...)
		return
	case is(err, rpctypes.ErrGRPCNoSpace) && !b.reading(p):
		b.noSpaceLocked(p)
		return
	}
	what, status := ErrNothingSent, cache.Refused
	switch {
	case refused(err):
		what = ErrRefused
	case p.mayBeDone:
		what, status = ErrNoAnswer, cache.Unknown
	}
	if b.reading(p) {
		status = cache.Refused // in any case, nothing was changed
	}
	if !errors.Is(err, ErrServer) {
		err = b.s.cfg.explain(what, err)
	}
	for i := range p.steps {
		b.stepFailedLocked(&p.steps[i], status, err, p.fence)
	}
}

// stepFailedLocked ends a step whose transaction has failed. fence is the revision that the
// transaction compared.
func (b *batch) stepFailedLocked(st *step, status cache.Status, err error, fence int64) {
	if status == cache.Unknown && st.takes() {
		b.s.lockKeys.unresolved[b.requestOf(st)] = fence
	}
	mayExist := st.action == actReadQueue // our key
	if st.g != nil {
		uncertain := &st.g.permit.uncertain
		*uncertain = *uncertain || status == cache.Unknown && !st.action.reads()
		mayExist = *uncertain
	}
	if mayExist && (st.kind == cache.OpTry || st.kind == cache.OpJoin) {
		status = cache.Unknown
	}
	b.fail(st, status, err)
}

// requestOf identifies the step's op among the unresolved acquires.
func (b *batch) requestOf(st *step) acquireID {
	op := &b.ops[st.i]
	return acquireID{lock: op.Key, token: op.Token, permit: op.Mode == cache.Permit}
}

func (b *batch) reading(p *part) bool { return p.steps[0].action.reads() }

// noSpaceLocked handles the error that the server's database is full. The server reports it before
// or after it has carried out the transaction, so the next round reads what has happened.
func (b *batch) noSpaceLocked(p *part) {
	b.separate = true
	err := b.s.cfg.explain(ErrRefused, p.err)
	for _, st := range p.steps {
		switch {
		case st.action == actTake:
			st.err = err
			b.next(&st, actReadQueue)
		case st.action == actDowngrade || st.unresolved: // a downgrade and a moved fence write as well
			b.stepFailedLocked(&st, cache.Unknown, err, b.sess.fence.Load())
		case st.action == actRemove || st.action == actRemovePermit:
			st.again = true
			b.next(&st, st.action)
		default:
			st.g.permit.uncertain, st.err = true, err
			b.next(&st, actResolvePermit)
		}
	}
}

// stamp answers with the session's deadline. If the session is over, the result is Unknown, because
// what was obtained under it is void.
func (b *batch) stamp(st *step, status cache.Status) bool {
	n := b.sess
	until := n.until.Load()
	if n.lost.Load() || b.s.clock() >= until {
		b.s.wake()
		b.fail(st, cache.Unknown, b.s.cfg.explain(ErrNoAnswer, fmt.Errorf("%w any more",
			ErrSession)))
		return false
	}
	b.finish(st, status)
	r := &b.results[st.i]
	r.Session, r.SessionNo = until, n.no
	return true
}

// done answers that the lease is valid, and whether others wait for the key, unless the session is
// over.
func (b *batch) done(st *step, contended bool) bool {
	ok := b.stamp(st, cache.Done)
	b.results[st.i].Contended = ok && contended
	return ok
}
