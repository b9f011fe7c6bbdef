package etcd

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/locksidecar/locksidecar/upstream"
)

var _ upstream.Noter = (*Store)(nil)

// noteKey is the key of the note. No lock's name looks like that: a percent sign in one is encoded.
const noteKey = "%note"

// Note reads the note. etcd serves a transaction that only reads as of a time after its arrival.
func (s *Store) Note(ctx context.Context) ([]byte, int64, error) {
	r, err := s.txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(&pb.RangeRequest{Key: []byte(s.root + noteKey)})}})
	if err != nil {
		return nil, 0, s.cfg.explain(ErrNoAnswer, fmt.Errorf("read the note %s: %w", s.root+noteKey, err))
	}
	kvs := r.Responses[0].GetResponseRange().GetKvs()
	if len(kvs) == 0 {
		return nil, 0, nil
	}
	return kvs[0].Value, kvs[0].ModRevision, nil
}

// SetNote writes the note, under no lease, if its revision is still version.
func (s *Store) SetNote(ctx context.Context, text []byte, version int64) (bool, error) {
	key := s.root + noteKey
	r, err := s.txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: []byte(key), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: version}}},
		Success: []*pb.RequestOp{putOp(key, string(text), 0)},
	})
	if err != nil {
		return false, s.cfg.explain(ErrNoAnswer, fmt.Errorf("write the note %s: %w", key, err))
	}
	return r.Succeeded, nil
}
