package etcd

import (
	"context"
	"slices"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// listPermits returns the holders of permits of semaphores whose keys begin with prefix.
func (s *Store) listPermits(ctx context.Context, prefix, cursor string, limit int) (
	permits []upstream.Lock, next string, err error,
) {
	dir, _ := s.permits(prefix)
	from, to := max(dir[:len(dir)-1], cursor), clientv3.GetPrefixRangeEnd(dir[:len(dir)-1])
	if from >= to {
		return nil, "", nil
	}
	limit = min(limit, listPage)
	page, err := s.read(ctx, from, to, int64(limit))
	if err != nil {
		return nil, "", err
	}
	if len(page) == limit {
		next = string(page[limit-1].Key) + "\x00"
	}
	permits, err = s.describePermits(ctx, page)
	return permits, next, err
}

// describePermits describes the holders that have these keys.
func (s *Store) describePermits(ctx context.Context, keys []*mvccpb.KeyValue) (
	permits []upstream.Lock, err error,
) {
	for _, kv := range keys {
		name, dir, _, ok := s.semaphore(string(kv.Key))
		if !ok {
			continue
		}
		_, slot, ours := holder(string(kv.Key), dir)
		token := permitToken(string(kv.Value))
		l := s.describeHolder(name, kv, token, !ours || token == 0)
		l.Mode, l.Base = cache.Permit, permitBase(kv.CreateRevision, int(slot))
		permits = append(permits, l)
	}
	s.timeLeft(ctx, permits)
	return permits, s.countWaiters(ctx, permits)
}

// countWaiters fills in how many tokens queue.
func (s *Store) countWaiters(ctx context.Context, permits []upstream.Lock) error {
	var names []string
	for _, p := range permits {
		names = append(names, p.Key)
	}
	names = slices.Compact(names)
	waiters := map[string]int{}
	for part := range slices.Chunk(names, int(s.maxOps.Load())) {
		req := &pb.TxnRequest{}
		for _, name := range part {
			_, queue := s.permits(name)
			req.Success = append(req.Success, countDir(queue))
		}
		r, err := s.txn(ctx, "count waiters", req)
		if err != nil {
			return err
		}
		for i, name := range part {
			waiters[name] = int(count(r.Responses[i]))
		}
	}
	for i := range permits {
		permits[i].Waiters = waiters[permits[i].Key]
	}
	return nil
}

// sweepPermits removes n's keys in semaphores whose tokens are not known. The keys' values name the
// tokens.
func (s *Store) sweepPermits(
	ctx context.Context, n *session, semaphores map[string]string,
	known func(key string, token uint64) bool,
) (removed int, err error) {
	own := &sem{own: strconv.FormatInt(n.lease, 16) + "-"}
	for dir, name := range semaphores {
		keys, err := s.read(ctx, dir+own.own, own.ownEnd(dir), 0)
		if err != nil {
			return removed, err
		}
		keys = slices.DeleteFunc(keys, func(kv *mvccpb.KeyValue) bool {
			return known(name, permitToken(string(kv.Value)))
		})
		for part := range slices.Chunk(keys, int(s.maxOps.Load())-1) {
			gone, err := s.removePermits(ctx, name, part)
			if removed += gone; err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

func (s *Store) removePermits(
	ctx context.Context, name string, keys []*mvccpb.KeyValue,
) (removed int, err error) {
	req := &pb.TxnRequest{}
	for _, kv := range keys {
		key := string(kv.Key)
		req.Success = append(req.Success, txnOp(&pb.TxnRequest{
			Compare: one(ifCreated(key, kv.CreateRevision)), Success: ops(deleteOp(key))}))
	}
	r, err := s.txn(ctx, "sweep", req)
	if err != nil {
		return 0, err
	}
	t := &s.lockKeys
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, kv := range keys {
		if !nested(r.Responses[i]).Succeeded {
			continue
		}
		removed++
		if m := t.sems[name]; m != nil {
			if g := m.tokens[permitToken(string(kv.Value))]; g != nil && !g.permit.uncertain {
				t.forgetPermitLocked(g)
			}
		}
	}
	return removed, nil
}
