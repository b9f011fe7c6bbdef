package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// startLockOpLocked chooses the first action of an op about a lock. It is called with lockKeys.mu
// held.
func (b *batch) startLockOpLocked(st *step, op *upstream.Op) {
	st.dir = b.s.dir(op.Key)
	if op.Kind == cache.OpPeek {
		st.action = actPeek
		return
	}
	g := b.s.lockKeys.findLocked(b.sess, op.Key, op.Token)
	if g != nil {
		st.keyState = g.keyState
	} else {
		st.key = key(st.dir, b.sess.lease, op.Token)
	}
	st.join, st.shortLived = op.Kind == cache.OpJoin, op.ShortLived
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		switch {
		case g == nil || st.unresolved:
		case g.held || !st.join:
			st.action = actReadQueue
		default:
			st.action = actCheck
		}
	case cache.OpRelease, cache.OpWithdraw:
		st.action = actRemove
		if g != nil {
			g.leaving = true
		}
	default:
		switch held := g != nil && g.held; {
		case !held:
			st.action = actReadQueue
		case op.Kind == cache.OpRenew:
			st.action, st.mode = actRenew, g.mode
		default:
			st.action = actDowngrade
		}
	}
}

// request returns the part of a transaction that carries out st. The part of a step that takes a
// lock is a nested transaction, whose compares all run before anything is written.
func (st *step) request(lease int64) *pb.RequestOp {
	switch st.action {
	case actTake:
		if st.mode == cache.Shared {
			return txnOp(st.share(lease))
		}
		return txnOp(st.acquire(lease))
	case actRemove:
		return deleteOp(st.key)
	case actDowngrade:
		return txnOp(&pb.TxnRequest{Compare: one(ifCreated(st.key, st.rev)),
			Success: ops(putOp(st.key, valueShared, lease), queueOp(st.dir))})
	}
	return txnOp(st.permitRequest(lease))
}

// acquire puts the key of a join whether the lock is free or not; if it is not, the next round
// reads its place in the queue. A late request leaves an existing key as it is: only a downgrade
// changes a value, and it invalidates requests in flight.
func (st *step) acquire(lease int64) *pb.TxnRequest {
	value := valueExclusive
	if st.shortLived {
		value = valueShortLived
	}
	put := putOp(st.key, value, lease)
	t := &pb.TxnRequest{Compare: one(ifFree(st.dir)), Success: ops(put), Failure: ops(put)}
	if !st.join {
		t.Failure = ops(getOp(st.key))
	}
	return t
}

// share is acquire for a reader.
func (st *step) share(lease int64) *pb.TxnRequest {
	put := putOp(st.key, valueShared, lease)
	// If all keys are readers', so is ours if it exists: writing it again does nothing. Its create
	// revision is read before.
	beside := &pb.TxnRequest{Compare: one(ifShared(st.dir)), Success: ops(getOp(st.key), put)}
	if beside.Failure = ops(put); !st.join {
		beside.Failure = ops(getOp(st.key))
	}
	return &pb.TxnRequest{Compare: one(ifFree(st.dir)), Success: ops(put), Failure: ops(txnOp(beside))}
}

// reads returns the reads of st.
func (st *step) reads() []*pb.RequestOp {
	switch st.action {
	case actPeek:
		return ops(firstOp(st.dir))
	case actCheck:
		return ops(getOp(st.key), getOp(st.pred))
	}
	return ops(queueOp(st.dir))
}
