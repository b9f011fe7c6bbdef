package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// noteKey is the key of the note. No lock's name is encoded like this.
const noteKey = "%note"

// Note reads the note. etcd serves a transaction that only reads as of a time after its arrival.
func (s *Store) Note(ctx context.Context) ([]byte, int64, error) {
	key := s.root + noteKey
	r, err := s.txn(ctx, "read the note "+key, &pb.TxnRequest{Success: ops(valueOp(key))})
	if err != nil {
		return nil, 0, err
	}
	found := kvs(r.Responses[0])
	if len(found) == 0 {
		return nil, 0, nil
	}
	return found[0].Value, found[0].ModRevision, nil
}

// SetNote writes the note, under no lease, if its revision is still version.
func (s *Store) SetNote(ctx context.Context, text []byte, version int64) (bool, error) {
	key := s.root + noteKey
	r, err := s.txn(ctx, "write the note "+key, &pb.TxnRequest{Compare: one(ifWritten(key, version)),
		Success: ops(putOp(key, string(text), 0))})
	if err != nil {
		return false, err
	}
	return r.Succeeded, nil
}
