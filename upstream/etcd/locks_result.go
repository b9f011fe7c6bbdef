package etcd

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
)

// place is the position of a key in its lock's queue.
type place struct {
	kv        *mvccpb.KeyValue
	pred      *mvccpb.KeyValue // the key whose change it waits for; nil when granted
	granted   bool
	contended bool // granted: another waits for it
	tried     bool // granted: another has a short-lived entry
}

// byAge compares the positions of two keys in their queue.
func byAge(a, b *mvccpb.KeyValue) int {
	return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), bytes.Compare(a.Key, b.Key))
}

// evaluate finds key in a lock's queue, which it sorts by create revision. A writer holds the lock
// if nothing is before it. A reader holds it if only readers are before it.
func evaluate(queue []*mvccpb.KeyValue, key string) (p place, ok bool) {
	slices.SortFunc(queue, byAge)
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
		if shortLivedKV(kv) {
			p.tried = true
		} else if !sharedKV(p.kv) || !sharedKV(kv) {
			p.contended = true
		}
	}
	return p, true
}

// wroteLocked reads the answer to a step that writes.
func (b *batch) wroteLocked(st *step, r *pb.ResponseOp, rev int64) {
	switch st.action {
	case actTake:
		b.tookLocked(st, nested(r), rev)
	case actRemove:
		b.removedLocked(st, r.GetResponseDeleteRange().Deleted > 0)
	case actDowngrade:
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
		b.finish(st, cache.Busy)
		return
	}
	b.next(st, actReadQueue)
}

// placedLocked answers an acquire from the lock's queue.
func (b *batch) placedLocked(st *step, queue []*mvccpb.KeyValue) {
	p, ok := evaluate(queue, st.key)
	switch {
	case !ok && st.err != nil:
		b.fail(st, cache.Refused, st.err)
	case !ok: // the key existed, but another client has removed it
		b.forgetLocked(st)
		b.next(st, actTake)
	case p.granted && modeOf(p.kv) == st.mode:
		b.grantedLocked(st, p.kv.CreateRevision, modeOf(p.kv), p.contended, p.kv.CreateRevision == st.put)
	case st.join && p.granted:
		b.finish(st, cache.Queued) // held in the other mode, which the daemon never requests
	case st.join:
		b.queuedLocked(st, p)
	case p.granted:
		b.finish(st, cache.Busy)
	default:
		b.next(st, actRemove) // a try leaves nothing behind
	}
}

// grantedLocked answers that the lock is ours, if its session is still valid. fresh says that this
// op has made the key.
func (b *batch) grantedLocked(st *step, base int64, mode cache.Mode, contended, fresh bool) {
	op := &b.ops[st.i]
	if uint64(base) > cache.MaxBase || fresh && uint64(base) <= op.Floor {
		st.err = fmt.Errorf("%w: its revision %d is no fence above %d at %s (raise fence_epoch)",
			ErrRefused, base, op.Floor, b.s.cfg.addr())
		b.next(st, actRemove)
		return
	}
	if !b.stamp(st, cache.Granted) {
		return
	}
	r := &b.results[st.i]
	r.Base, r.Contended = uint64(base), contended
	t := &b.s.lockKeys
	if g := t.findLocked(b.sess, op.Key, op.Token); g != nil && g.held && g.rev == base {
		g.mode = mode
		return
	}
	t.putLocked(&lockKey{lock: op.Key, token: op.Token, sess: b.sess, mode: mode, held: true,
		since: b.s.clock(), keyState: keyState{dir: st.dir, key: st.key, rev: base}})
}

// queuedLocked answers that the token queues, and requests a watch of the key before it.
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
	t.putLocked(&lockKey{lock: op.Key, token: op.Token, sess: b.sess, mode: modeOf(p.kv),
		keyState: keyState{dir: st.dir, key: st.key, rev: p.kv.CreateRevision,
			pred: pred, predRev: p.pred.CreateRevision, predMod: p.pred.ModRevision}})
}

// forgetLocked notes that the step's key does not exist.
func (b *batch) forgetLocked(st *step) {
	op := &b.ops[st.i]
	if g := b.s.lockKeys.findLocked(b.sess, op.Key, op.Token); g != nil {
		b.s.lockKeys.removeLocked(g)
	}
}

func (b *batch) removedLocked(st *step, was bool) {
	b.forgetLocked(st)
	b.removed(st, was)
}

// removed answers a step whose key has been removed. was says whether the key existed.
func (b *batch) removed(st *step, was bool) {
	switch {
	case st.err != nil:
		b.fail(st, cache.Refused, st.err)
	case st.kind == cache.OpTry:
		b.finish(st, cache.Busy)
	case st.kind == cache.OpRelease && !was && !st.again:
		b.finish(st, cache.NotHeld)
	default:
		b.finish(st, cache.Done)
	}
}

func (b *batch) downgradedLocked(st *step, r *pb.TxnResponse) {
	if !r.Succeeded {
		b.forgetLocked(st)
		b.finish(st, cache.NotHeld)
		return
	}
	p, _ := evaluate(kvs(r.Responses[1]), st.key)
	op := &b.ops[st.i]
	if g := b.s.lockKeys.findLocked(b.sess, op.Key, op.Token); b.done(st, p.contended) && g != nil {
		g.mode = cache.Shared
	}
}

// readStepLocked reads the answer to a step that only reads; r begins with its own.
func (b *batch) readStepLocked(st *step, r []*pb.ResponseOp) {
	switch st.action {
	case actPeek:
		if first := kvs(r[0]); len(first) == 0 {
			b.finish(st, cache.Done)
		} else {
			b.finish(st, cache.Busy)
			b.results[st.i].Mode = modeOf(first[0])
		}
	case actCheck:
		if st.unchanged(r) {
			b.stamp(st, cache.Queued)
			return
		}
		b.next(st, actReadQueue)
	case actRenew:
		b.renewedLocked(st, r)
	case actReadQueue:
		b.evaluatedLocked(st, kvs(r[0]))
	}
}

// unchanged reports whether our key still queues behind the same key. r answers actCheck.
func (st *step) unchanged(r []*pb.ResponseOp) bool {
	own, pred := kvs(r[0]), kvs(r[1])
	return isThat(own, st.rev) && isThat(pred, st.predRev) &&
		(st.mode == cache.Exclusive || pred[0].ModRevision == st.predMod)
}

// stillHeld reports whether our key still holds the lock. r answers actRenew.
func (st *step) stillHeld(r []*pb.ResponseOp) (p place, held bool) {
	p, ok := evaluate(kvs(r[0]), st.key)
	return p, ok && p.kv.CreateRevision == st.rev
}

func (b *batch) renewedLocked(st *step, r []*pb.ResponseOp) {
	p, held := st.stillHeld(r)
	if !held {
		b.forgetLocked(st)
		b.finish(st, cache.NotHeld)
		return
	}
	b.done(st, p.contended)
}

// evaluatedLocked answers an op from the whole queue.
func (b *batch) evaluatedLocked(st *step, queue []*mvccpb.KeyValue) {
	if st.kind == cache.OpTry || st.kind == cache.OpJoin {
		b.placedLocked(st, queue)
		return
	}
	p, ok := evaluate(queue, st.key)
	switch {
	case !ok || !p.granted:
		b.finish(st, cache.NotHeld)
	case st.kind == cache.OpDowngrade:
		st.rev = p.kv.CreateRevision
		b.next(st, actDowngrade)
	default:
		b.done(st, p.contended)
	}
}
