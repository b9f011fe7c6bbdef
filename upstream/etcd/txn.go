package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
)

// Pieces of transactions. Those of which a batch has hundreds are allocated whole.

func putOp(key, value string, lease int64) *pb.RequestOp {
	p := new(struct {
		op  pb.RequestOp
		one pb.RequestOp_RequestPut
		put pb.PutRequest
	})
	p.op.Request, p.one.RequestPut = &p.one, &p.put
	p.put.Key, p.put.Value, p.put.Lease = []byte(key), []byte(value), lease
	return &p.op
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

// getOp reads one key without its value.
func getOp(key string) *pb.RequestOp {
	return rangeOp(&pb.RangeRequest{Key: []byte(key), KeysOnly: true})
}

// queueOp reads all keys of a lock.
func queueOp(dir string) *pb.RequestOp {
	return rangeOp(&pb.RangeRequest{Key: []byte(dir), RangeEnd: rangeEnd(dir)})
}

// firstOp reads the first of a lock's queue.
func firstOp(dir string) *pb.RequestOp {
	return rangeOp(&pb.RangeRequest{Key: []byte(dir), RangeEnd: rangeEnd(dir), Limit: 1,
		SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_CREATE})
}

func countOp(from, to string) *pb.RequestOp {
	return rangeOp(&pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(to), CountOnly: true})
}

func deleteOp(key string) *pb.RequestOp {
	p := new(struct {
		op  pb.RequestOp
		one pb.RequestOp_RequestDeleteRange
		del pb.DeleteRangeRequest
	})
	p.op.Request, p.one.RequestDeleteRange, p.del.Key = &p.one, &p.del, []byte(key)
	return &p.op
}

func txnOp(t *pb.TxnRequest) *pb.RequestOp {
	p := new(struct {
		op  pb.RequestOp
		one pb.RequestOp_RequestTxn
	})
	p.op.Request, p.one.RequestTxn = &p.one, t
	return &p.op
}

// ifCreated compares a key's create revision, which is 0 for one that is not there.
func ifCreated(key string, rev int64) *pb.Compare {
	p := new(struct {
		compare pb.Compare
		one     pb.Compare_CreateRevision
	})
	c := &p.compare
	c.Key, c.Target, c.Result, c.TargetUnion = []byte(key), pb.Compare_CREATE, pb.Compare_EQUAL, &p.one
	p.one.CreateRevision = rev
	return c
}

// ifWritten compares the revision of a key's last writing.
func ifWritten(key string, rev int64) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
}

// ifFree says that nobody holds or wants the lock.
func ifFree(dir string) *pb.Compare {
	c := ifCreated(dir, 0)
	c.RangeEnd = rangeEnd(dir)
	return c
}

// ifShared says that somebody holds or wants the lock, and all as readers. etcd
// says no of a range without keys.
func ifShared(dir string) *pb.Compare {
	return &pb.Compare{Key: []byte(dir), RangeEnd: rangeEnd(dir), Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_Value{Value: []byte(valueShared)}}
}

func one(c *pb.Compare) []*pb.Compare         { return []*pb.Compare{c} }
func ops(o ...*pb.RequestOp) []*pb.RequestOp  { return o }
func kvs(r *pb.ResponseOp) []*mvccpb.KeyValue { return r.GetResponseRange().GetKvs() }
func nested(r *pb.ResponseOp) *pb.TxnResponse { return r.GetResponseTxn() }
func sharedKV(kv *mvccpb.KeyValue) bool       { return string(kv.Value) == valueShared }
func briefKV(kv *mvccpb.KeyValue) bool        { return string(kv.Value) == valueBrief }
func modeOf(kv *mvccpb.KeyValue) (m cache.Mode) {
	if sharedKV(kv) {
		return cache.Shared
	}
	return cache.Exclusive
}

// request is the part of a transaction that carries out st. The part of a taking
// one is a transaction of its own, whose compares all run before anything is
// written.
func (st *step) request(lease int64) *pb.RequestOp {
	switch st.plan {
	case planTake:
		if st.mode == cache.Shared {
			return txnOp(st.share(lease))
		}
		return txnOp(st.acquire(lease))
	case planRemove:
		return deleteOp(st.key)
	case planDowngrade:
		return txnOp(&pb.TxnRequest{Compare: one(ifCreated(st.key, st.rev)),
			Success: ops(putOp(st.key, valueShared, lease), queueOp(st.dir))})
	}
	return txnOp(st.permitRequest(lease))
}

// acquire puts the key of a join whether the lock is free or not; when not, the next
// round reads its place in the queue. One that comes late to a key that stands leaves
// it as it is: only a downgrade changes a value, and that ends what is on its way.
func (st *step) acquire(lease int64) *pb.TxnRequest {
	value := valueExclusive
	if st.brief {
		value = valueBrief
	}
	put := putOp(st.key, value, lease)
	t := &pb.TxnRequest{Compare: one(ifFree(st.dir)), Success: ops(put), Failure: ops(put)}
	if !st.join {
		t.Failure = ops(getOp(st.key))
	}
	return t
}

func (st *step) share(lease int64) *pb.TxnRequest {
	put := putOp(st.key, valueShared, lease)
	// A key that stands among readers only is a reader's: writing it again does
	// nothing. Its create revision is read before.
	beside := &pb.TxnRequest{Compare: one(ifShared(st.dir)), Success: ops(getOp(st.key), put)}
	if beside.Failure = ops(put); !st.join {
		beside.Failure = ops(getOp(st.key))
	}
	return &pb.TxnRequest{Compare: one(ifFree(st.dir)), Success: ops(put), Failure: ops(txnOp(beside))}
}

// reads are the reads that st consists of.
func (st *step) reads() []*pb.RequestOp {
	switch st.plan {
	case planPeek:
		return ops(firstOp(st.dir))
	case planCheck:
		return ops(getOp(st.key), getOp(st.pred))
	}
	return ops(queueOp(st.dir))
}
