package etcd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// registered returns the key of the entry of the daemon that has this lease. It is below the
// session's key, where no version expects a lock. The session's key itself cannot be the entry,
// because each write of it invalidates requests in flight.
func (n *names) registered(lease int64) string { return n.session(lease) + "/daemon" }

// Register writes the entry under the lease of the present session, with which it ends.
func (s *Store) Register(ctx context.Context, r upstream.Registration, _ time.Duration) error {
	n := s.cur.Load()
	if n == nil || n.lost.Load() {
		return fmt.Errorf("register: %w", ErrSession)
	}
	put := putOp(s.registered(n.lease), r.Encode(), n.lease)
	_, err := s.txn(ctx, "register", &pb.TxnRequest{Success: ops(put)})
	return err
}

// Unregister deletes the entry of the present session. Entries of earlier sessions ended with their
// leases.
func (s *Store) Unregister(ctx context.Context) error {
	n := s.cur.Load()
	if n == nil {
		return nil
	}
	_, err := s.txn(ctx, "unregister", &pb.TxnRequest{Success: ops(deleteOp(s.registered(n.lease)))})
	return err
}

// Registered reads the entries in as few transactions as the server's limit allows.
func (s *Store) Registered(ctx context.Context, ids []string) (
	map[string]upstream.Registration, error,
) {
	found := map[string]upstream.Registration{}
	for part := range slices.Chunk(ids, int(max(1, s.maxOps.Load()))) {
		req := &pb.TxnRequest{}
		for _, id := range part {
			lease, _ := strconv.ParseInt(id, 16, 64)
			req.Success = append(req.Success, valueOp(s.registered(lease)))
		}
		r, err := s.txn(ctx, "read registrations", req)
		if err != nil {
			return found, err
		}
		for i, id := range part {
			if kv := kvs(r.Responses[i]); len(kv) == 1 {
				if entry, ok := upstream.ParseRegistration(string(kv[0].Value)); ok {
					found[id] = entry
				}
			}
		}
	}
	return found, nil
}

// Holders reads the queue of one key. Only the holders' daemons know Held, because etcd stores
// revisions but no times.
func (s *Store) Holders(ctx context.Context, key string, mode cache.Mode, limit int) (
	locks []upstream.Lock, err error,
) {
	if limit < 1 {
		return nil, nil
	}
	if mode == cache.Permit {
		locks, err = s.permitHolders(ctx, key, limit)
	} else {
		locks, err = s.lockHolders(ctx, key, limit)
	}
	for i := range locks {
		locks[i].Asker = s
	}
	return locks, err
}

func (s *Store) lockHolders(ctx context.Context, key string, limit int) (
	locks []upstream.Lock, err error,
) {
	dir := s.dir(key)
	queue, err := s.read(ctx, dir, dirEnd(dir), 0)
	if err != nil || len(queue) == 0 {
		return nil, err
	}
	whole := s.describe(key, dir, queue) // describe sorts the queue
	for _, kv := range queue[:len(queue)-whole.Waiters] {
		if len(locks) == limit {
			break
		}
		one := s.describe(key, dir, []*mvccpb.KeyValue{kv})
		one.Waiters = whole.Waiters
		locks = append(locks, one)
	}
	s.timeLeft(ctx, locks)
	return locks, nil
}

func (s *Store) permitHolders(ctx context.Context, key string, limit int) ([]upstream.Lock, error) {
	dir, _ := s.permits(key)
	keys, err := s.read(ctx, dir, dirEnd(dir), int64(limit))
	if err != nil {
		return nil, err
	}
	return s.describePermits(ctx, keys)
}

// daemonOf returns the id under which the daemon with this lease registers.
func daemonOf(lease int64) string { return strconv.FormatInt(lease, 16) }
