package etcd

import (
	"cmp"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
)

// place is where a key stands in its lock's queue.
type place struct {
	kv      *mvccpb.KeyValue
	pred    *mvccpb.KeyValue // whose change it waits for; nil when granted
	granted bool
	wanted  bool // granted: somebody waits for it
	tried   bool // … or has a short-lived entry
}

// evaluate finds key in a lock's queue. What counts is the order of create
// revisions: a writer holds the lock when nothing is before it, a reader when
// nothing but readers is.
func evaluate(queue []*mvccpb.KeyValue, key string) (p place, ok bool) {
	slices.SortFunc(queue, func(a, b *mvccpb.KeyValue) int {
		return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), cmp.Compare(string(a.Key), string(b.Key)))
	})
	at := slices.IndexFunc(queue, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == key })
	if at < 0 {
		return place{}, false
	}
	p.kv = queue[at]
	for i := at - 1; i >= 0 && p.pred == nil; i-- {
		if !sharedKV(p.kv) || !sharedKV(queue[i]) {
			p.pred = queue[i]
		}
	}
	p.granted = p.pred == nil
	for _, kv := range queue[at+1:] {
		if briefKV(kv) {
			p.tried = true
		} else if !sharedKV(p.kv) || !sharedKV(kv) {
			p.wanted = true
		}
	}
	return p, true
}

// readLocked reads the answer to one transaction. Like all here it is called with
// lockKeys.mu held.
func (b *batch) readLocked(p *part) {
	switch {
	case p.err != nil:
		b.failedLocked(p)
	case b.reading(p) && p.about != nil:
		b.sawPermitsLocked(p)
	case b.reading(p):
		for i := range p.steps {
			b.lookedLocked(&p.steps[i], p.resp.Responses[p.at[i]:])
		}
	case !p.resp.Succeeded:
		b.fencedLocked(p)
	default:
		if p.bump {
			b.bumpedLocked(p)
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

// fencedLocked is for a transaction whose compare of the session's key failed:
// nothing was done. The key was written anew meanwhile, or it is gone.
func (b *batch) fencedLocked(p *part) {
	if kv := kvs(p.resp.Responses[0]); len(kv) > 0 {
		raise(&b.sess.fence, kv[0].ModRevision)
		b.steps = append(b.steps, p.steps...)
		return
	}
	b.s.wake()
	for i := range p.steps {
		if st := &p.steps[i]; st.takes() {
			err := b.s.cfg.explain(ErrRefused, fmt.Errorf("%w: its key %s is gone", ErrSession, b.sess.key))
			if st.plan.permit() {
				b.permitFailedLocked(st, cache.Refused, err, p.fence)
				continue
			}
			b.fail(st, cache.Refused, err)
		} else {
			b.steps = append(b.steps, *st)
		}
	}
}

// bumpedLocked takes note that the session's key has been written anew, or is not
// there and can only be written later: whatever compares its earlier revision can do
// nothing any more.
func (b *batch) bumpedLocked(p *part) {
	rev := p.resp.Header.Revision
	if last := nested(p.resp.Responses[len(p.resp.Responses)-1]); last.Succeeded {
		raise(&b.sess.fence, rev)
	}
	for d, fence := range b.s.lockKeys.doubts {
		if fence < rev {
			delete(b.s.lockKeys.doubts, d)
		}
	}
}

// wroteLocked reads the answer of a step that writes.
func (b *batch) wroteLocked(st *step, r *pb.ResponseOp, rev int64) {
	switch st.plan {
	case planTake:
		b.tookLocked(st, nested(r), rev)
	case planRemove:
		b.removedLocked(st, r.GetResponseDeleteRange().Deleted > 0)
	case planDowngrade:
		b.downgradedLocked(st, nested(r))
	}
}

// tookLocked follows the branches of acquire and share.
func (b *batch) tookLocked(st *step, r *pb.TxnResponse, rev int64) {
	if r.Succeeded {
		b.grantedLocked(st, rev, st.mode, false, true)
		return
	}
	if st.mode == cache.Shared {
		r = nested(r.Responses[0])
		if r.Succeeded {
			if before := kvs(r.Responses[0]); len(before) > 0 {
				b.grantedLocked(st, before[0].CreateRevision, st.mode, false, false)
			} else {
				b.grantedLocked(st, rev, st.mode, false, true)
			}
			return
		}
	}
	if st.join {
		st.put = rev
	} else if len(kvs(r.Responses[0])) == 0 {
		b.answer(st, cache.Busy)
		return
	}
	st.plan = planEval
	b.steps = append(b.steps, *st)
}

// placedLocked answers an acquire from the lock's queue.
func (b *batch) placedLocked(st *step, queue []*mvccpb.KeyValue) {
	p, ok := evaluate(queue, st.key)
	switch {
	case !ok && st.err != nil:
		b.fail(st, cache.Refused, st.err)
	case !ok: // it stood, but somebody has removed it
		b.forgetLocked(st)
		st.plan = planTake
		b.steps = append(b.steps, *st)
	case p.granted && (modeOf(p.kv) == st.mode || st.mode == cache.Shared):
		b.grantedLocked(st, p.kv.CreateRevision, modeOf(p.kv), p.wanted, p.kv.CreateRevision == st.put)
	case st.join && p.granted:
		b.answer(st, cache.Queued) // a reader by now, and asked for as a writer: nobody does that
	case st.join:
		b.queuedLocked(st, p)
	case p.granted:
		b.answer(st, cache.Busy)
	default:
		st.plan = planRemove // a try leaves nothing behind
		b.steps = append(b.steps, *st)
	}
}

// grantedLocked answers that the lock is ours, if the session that it hangs on is
// still there to be relied on. fresh says that this very op has made the key.
func (b *batch) grantedLocked(st *step, base int64, mode cache.Mode, wanted, fresh bool) {
	op := &b.ops[st.i]
	if uint64(base) > cache.MaxBase || fresh && uint64(base) <= op.Floor {
		st.plan, st.err = planRemove, fmt.Errorf("%w: its revision %d is no fence above %d at %s (raise fence_epoch)", ErrRefused, base, op.Floor, b.s.cfg.addr())
		b.steps = append(b.steps, *st)
		return
	}
	if !b.stamp(st, cache.Granted) {
		return
	}
	r := &b.results[st.i]
	r.Base, r.Contended = uint64(base), wanted
	t := &b.s.lockKeys
	if g := t.findLocked(b.sess, op.Key, op.Token); g != nil && g.held && g.rev == base {
		g.mode = mode
		return
	}
	t.putLocked(&lockKey{lock: op.Key, dir: st.dir, key: st.key, token: op.Token, sess: b.sess, rev: base,
		mode: mode, held: true, since: b.s.clock()})
}

// queuedLocked answers that the token queues, and has what is before it watched.
func (b *batch) queuedLocked(st *step, p place) {
	if !b.stamp(st, cache.Queued) {
		return
	}
	op, t := &b.ops[st.i], &b.s.lockKeys
	g := t.findLocked(b.sess, op.Key, op.Token)
	pred := string(p.pred.Key)
	if g != nil && !g.held && g.pred == pred && g.predRev == p.pred.CreateRevision {
		g.predMod = p.pred.ModRevision
		t.watchLocked(g)
		return
	}
	t.putLocked(&lockKey{lock: op.Key, dir: st.dir, key: st.key, token: op.Token, sess: b.sess, rev: p.kv.CreateRevision,
		mode: modeOf(p.kv), pred: pred, predRev: p.pred.CreateRevision, predMod: p.pred.ModRevision})
}

// stamp answers with the session's deadline, unless the session is over: then
// what has been got under it is worth nothing.
func (b *batch) stamp(st *step, status cache.Status) bool {
	n := b.sess
	until := n.until.Load()
	if n.lost.Load() || b.s.clock() >= until {
		b.s.wake()
		b.fail(st, cache.Unknown, b.s.cfg.explain(ErrNoAnswer, fmt.Errorf("%w any more", ErrSession)))
		return false
	}
	b.answer(st, status)
	r := &b.results[st.i]
	r.Session, r.SessionNo = until, n.no
	return true
}

// forgetLocked takes note that the step's key does not stand.
func (b *batch) forgetLocked(st *step) {
	op := &b.ops[st.i]
	if g := b.s.lockKeys.findLocked(b.sess, op.Key, op.Token); g != nil {
		b.s.lockKeys.removeLocked(g)
	}
}

func (b *batch) removedLocked(st *step, was bool) {
	b.forgetLocked(st)
	switch {
	case st.err != nil:
		b.fail(st, cache.Refused, st.err)
	case st.kind == cache.OpTry:
		b.answer(st, cache.Busy)
	case st.kind == cache.OpRelease && !was && !st.again:
		b.answer(st, cache.NotHeld)
	default:
		b.answer(st, cache.Done)
	}
}

func (b *batch) downgradedLocked(st *step, r *pb.TxnResponse) {
	if !r.Succeeded {
		b.forgetLocked(st)
		b.answer(st, cache.NotHeld)
		return
	}
	p, _ := evaluate(kvs(r.Responses[1]), st.key)
	if !b.stamp(st, cache.Done) {
		return
	}
	b.results[st.i].Contended = p.wanted
	op := &b.ops[st.i]
	if g := b.s.lockKeys.findLocked(b.sess, op.Key, op.Token); g != nil {
		g.mode = cache.Shared
	}
}

// lookedLocked reads the answer of a step that reads; r begins with its own.
func (b *batch) lookedLocked(st *step, r []*pb.ResponseOp) {
	switch st.plan {
	case planPeek:
		if first := kvs(r[0]); len(first) == 0 {
			b.answer(st, cache.Done)
		} else {
			b.answer(st, cache.Busy)
			b.results[st.i].Mode = modeOf(first[0])
		}
	case planCheck:
		if st.unchanged(r) {
			b.stamp(st, cache.Queued)
			return
		}
		st.plan = planEval
		b.steps = append(b.steps, *st)
	case planRenew:
		b.renewedLocked(st, r)
	case planEval:
		b.evaluatedLocked(st, kvs(r[0]))
	}
}

// unchanged reads planCheck: our key still queues behind the same one.
func (st *step) unchanged(r []*pb.ResponseOp) bool {
	own, pred := kvs(r[0]), kvs(r[1])
	return len(own) == 1 && own[0].CreateRevision == st.rev && len(pred) == 1 && pred[0].CreateRevision == st.predRev &&
		(st.mode == cache.Exclusive || pred[0].ModRevision == st.predMod)
}

// stillHeld reads planRenew.
func (st *step) stillHeld(r []*pb.ResponseOp) (p place, held bool) {
	p, ok := evaluate(kvs(r[0]), st.key)
	return p, ok && p.kv.CreateRevision == st.rev
}

func (b *batch) renewedLocked(st *step, r []*pb.ResponseOp) {
	p, held := st.stillHeld(r)
	if !held {
		b.forgetLocked(st)
		b.answer(st, cache.NotHeld)
	} else if b.stamp(st, cache.Done) {
		b.results[st.i].Contended = p.wanted
	}
}

// evaluatedLocked answers from the whole queue.
func (b *batch) evaluatedLocked(st *step, queue []*mvccpb.KeyValue) {
	if st.kind == cache.OpTry || st.kind == cache.OpJoin {
		b.placedLocked(st, queue)
		return
	}
	p, ok := evaluate(queue, st.key)
	switch {
	case !ok || !p.granted:
		b.answer(st, cache.NotHeld)
	case st.kind == cache.OpDowngrade:
		st.plan, st.rev = planDowngrade, p.kv.CreateRevision
		b.steps = append(b.steps, *st)
	case b.stamp(st, cache.Done):
		b.results[st.i].Contended = p.wanted
	}
}
