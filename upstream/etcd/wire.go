package etcd

import (
	"context"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/locksidecar/locksidecar/cache"
)

// The functions below make the parts of transactions. A batch can have hundreds of parts, so each
// part is one allocation.

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

// firstOp reads the first key of a lock's queue.
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

// ifCreated compares a key's create revision, which is 0 if the key does not exist.
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

// ifWritten compares the revision of a key's last write.
func ifWritten(key string, rev int64) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
}

// ifFree is true if nobody holds the lock or waits for it.
func ifFree(dir string) *pb.Compare {
	c := ifCreated(dir, 0)
	c.RangeEnd = rangeEnd(dir)
	return c
}

// ifShared is true if the lock has holders or waiters and all of them are readers. It is false for
// a range without keys.
func ifShared(dir string) *pb.Compare {
	c := ifValue(dir, valueShared)
	c.RangeEnd = rangeEnd(dir)
	return c
}

func one(c *pb.Compare) []*pb.Compare         { return []*pb.Compare{c} }
func ops(o ...*pb.RequestOp) []*pb.RequestOp  { return o }
func kvs(r *pb.ResponseOp) []*mvccpb.KeyValue { return r.GetResponseRange().GetKvs() }
func nested(r *pb.ResponseOp) *pb.TxnResponse { return r.GetResponseTxn() }
func count(r *pb.ResponseOp) int64            { return r.GetResponseRange().GetCount() }
func sharedKV(kv *mvccpb.KeyValue) bool       { return string(kv.Value) == valueShared }
func shortLivedKV(kv *mvccpb.KeyValue) bool   { return string(kv.Value) == valueShortLived }
func modeOf(kv *mvccpb.KeyValue) (m cache.Mode) {
	if sharedKV(kv) {
		return cache.Shared
	}
	return cache.Exclusive
}

// rpc is a method of one of etcd's clients.
type rpc[Q, R any] func(context.Context, *Q, ...grpc.CallOption) (*R, error)

// request makes one call. asked reports whether the server may have carried it out.
func request[Q, R any](
	ctx context.Context, c *client, method rpc[Q, R], req *Q,
) (r *R, asked bool, err error) {
	asked, err = c.call(ctx, func(ctx context.Context) (err error) {
		r, err = method(ctx, req)
		return err
	})
	return r, asked, err
}

// bounded makes one call, which takes at most Timeout.
func bounded[Q, R any](ctx context.Context, s *Store, method rpc[Q, R], req *Q) (*R, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	r, _, err := request(ctx, s.client, method, req)
	return r, err
}

// read reads the keys in the range [from, to). The limit 0 means all of them.
func (s *Store) read(
	ctx context.Context, from, to string, limit int64,
) ([]*mvccpb.KeyValue, error) {
	req := &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(to), Limit: limit}
	r, err := bounded(ctx, s, s.client.kv.Range, req)
	if err != nil {
		return nil, s.cfg.explain(ErrNoAnswer, fmt.Errorf("list locks: %w", err))
	}
	return r.Kvs, nil
}

// txn carries out one transaction, which takes at most Timeout. Its error names the purpose.
func (s *Store) txn(
	ctx context.Context, purpose string, req *pb.TxnRequest,
) (*pb.TxnResponse, error) {
	n, high := s.cur.Load(), s.high.Load()
	r, err := bounded(ctx, s, s.client.kv.Txn, req)
	if err != nil {
		return nil, s.cfg.explain(ErrNoAnswer, fmt.Errorf("%s: %w", purpose, err))
	}
	return r, s.checkHistory(n, r, high)
}

// ifValue compares a key's value.
func ifValue(key, value string) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_Value{Value: []byte(value)}}
}

// valueOp reads one key.
func valueOp(key string) *pb.RequestOp { return rangeOp(&pb.RangeRequest{Key: []byte(key)}) }

func namesOp(from, to string, limit int64) *pb.RequestOp {
	return rangeOp(&pb.RangeRequest{
		Key: []byte(from), RangeEnd: []byte(to), KeysOnly: true, Limit: limit})
}

func countDir(dir string) *pb.RequestOp { return countOp(dir, dirEnd(dir)) }
func listDir(dir string) *pb.RequestOp  { return namesOp(dir, dirEnd(dir), 0) }

// wrote reports whether a transaction has changed anything.
func wrote(rs []*pb.ResponseOp) bool {
	return slices.ContainsFunc(rs, func(r *pb.ResponseOp) bool {
		return r.GetResponsePut() != nil || r.GetResponseDeleteRange().GetDeleted() > 0 ||
			wrote(nested(r).GetResponses())
	})
}

// isThat reports whether a key exists that was created at rev.
func isThat(k []*mvccpb.KeyValue, rev int64) bool {
	return len(k) == 1 && k[0].CreateRevision == rev
}

// depth is the longest path of nested operations for one key.
const depth = 3
