package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

var _ upstream.Registrar = (*Store)(nil)

// registered returns the key of the entry of the daemon that has this lease. It is below the session's
// key, where no version looks for a lock. The session's key itself would not do: each write of it
// invalidates requests that are still on their way.
func (n *names) registered(lease int64) string { return n.session(lease) + "/daemon" }

var errNoSession = errors.New("no session at etcd")

// Register writes the entry under the lease of the present session, with which it ends.
func (s *Store) Register(ctx context.Context, r upstream.Registration, _ time.Duration) error {
	n := s.cur.Load()
	if n == nil || n.lost.Load() {
		return fmt.Errorf("register: %w", errNoSession)
	}
	put := putOp(s.registered(n.lease), r.Encode(), n.lease)
	if _, err := s.txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{put}}); err != nil {
		return s.cfg.explain(ErrNoAnswer, fmt.Errorf("register: %w", err))
	}
	return nil
}

// Unregister deletes the entry of the present session. Entries of earlier sessions ended with their
// leases.
func (s *Store) Unregister(ctx context.Context) error {
	n := s.cur.Load()
	if n == nil {
		return nil
	}
	remove := deleteOp(s.registered(n.lease))
	if _, err := s.txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{remove}}); err != nil {
		return s.cfg.explain(ErrNoAnswer, fmt.Errorf("unregister: %w", err))
	}
	return nil
}

// Registered reads the entries in as few transactions as the server's limit allows.
func (s *Store) Registered(ctx context.Context, ids []string) (map[string]upstream.Registration, error) {
	found := map[string]upstream.Registration{}
	for part := range slices.Chunk(ids, int(max(1, s.most.Load()))) {
		req := &pb.TxnRequest{}
		for _, id := range part {
			lease, _ := strconv.ParseInt(id, 16, 64)
			req.Success = append(req.Success, rangeOp(&pb.RangeRequest{Key: []byte(s.registered(lease))}))
		}
		r, err := s.txn(ctx, req)
		if err != nil {
			return found, s.cfg.explain(ErrNoAnswer, fmt.Errorf("read registrations: %w", err))
		}
		for i, id := range part {
			if kvs := r.Responses[i].GetResponseRange().GetKvs(); len(kvs) == 1 {
				if entry, ok := upstream.ParseRegistration(string(kvs[0].Value)); ok {
					found[id] = entry
				}
			}
		}
	}
	return found, nil
}

// Holders reads the queue of one key. The holders' daemons have to be asked for Held, because etcd stores revisions
// but no times.
func (s *Store) Holders(ctx context.Context, key string, mode cache.Mode, limit int) (locks []upstream.Lock, err error) {
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

func (s *Store) lockHolders(ctx context.Context, key string, limit int) (locks []upstream.Lock, err error) {
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

func (s *Store) permitHolders(ctx context.Context, key string, limit int) (locks []upstream.Lock, err error) {
	dir, _ := s.permits(key)
	for from := dir; len(locks) < limit; {
		page, next, err := s.listPermits(ctx, key, from, limit-len(locks))
		if err != nil {
			return nil, err
		}
		for _, l := range page {
			if l.Key == key {
				locks = append(locks, l)
			}
		}
		if from = next; next == "" || next >= dirEnd(dir) {
			break
		}
	}
	return locks, nil
}

// daemonOf returns the id under which the daemon with this lease registers.
func daemonOf(lease int64) string { return strconv.FormatInt(lease, 16) }
