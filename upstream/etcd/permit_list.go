package etcd

import (
	"context"
	"slices"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// listPermits returns what hold permits of semaphores whose keys begin with prefix.
func (s *Store) listPermits(ctx context.Context, prefix, cursor string, limit int) (permits []upstream.Lock, next string, err error) {
	dir, _ := s.permits(prefix)
	from, to := max(dir[:len(dir)-1], cursor), prefixEnd(dir[:len(dir)-1])
	if from >= to {
		return nil, "", nil
	}
	most := min(limit, listPage)
	page, err := s.read(ctx, from, to, int64(most))
	if err != nil {
		return nil, "", err
	}
	n := s.cur.Load()
	for _, kv := range page {
		key := string(kv.Key)
		next = key + "\x00"
		name, dir, _, ok := s.semaphore(key)
		if !ok {
			continue
		}
		_, slot, ours := holder(key, dir)
		l := upstream.Lock{Key: name, Name: key, Mode: cache.Permit, Holder: "lease " + strconv.FormatInt(kv.Lease, 16),
			Mine: n != nil && kv.Lease == n.lease, Foreign: !ours || permitToken(string(kv.Value)) == 0,
			Left: -1, Waiters: -1, Base: permitBase(kv.CreateRevision, int(slot))}
		if !l.Foreign {
			l.Daemon, l.Token = daemonOf(kv.Lease), permitToken(string(kv.Value))
		}
		permits = append(permits, l)
	}
	if len(page) < most {
		next = ""
	}
	s.timeLeft(ctx, permits)
	return permits, next, s.waiting(ctx, permits)
}

// waiting fills in how many queue.
func (s *Store) waiting(ctx context.Context, permits []upstream.Lock) error {
	var names []string
	for _, p := range permits {
		names = append(names, p.Key)
	}
	names = slices.Compact(names)
	waiters := map[string]int{}
	for part := range slices.Chunk(names, int(s.most.Load())) {
		req := &pb.TxnRequest{}
		for _, name := range part {
			_, queue := s.permits(name)
			req.Success = append(req.Success, countDir(queue))
		}
		r, err := s.txn(ctx, req)
		if err != nil {
			return s.cfg.explain(ErrNoAnswer, err)
		}
		for i, name := range part {
			waiters[name] = int(r.Responses[i].GetResponseRange().Count)
		}
	}
	for i := range permits {
		permits[i].Waiters = waiters[permits[i].Key]
	}
	return nil
}

// txn carries out one transaction, which takes Timeout at most.
func (s *Store) txn(ctx context.Context, req *pb.TxnRequest) (r *pb.TxnResponse, err error) {
	_, err = s.bounded(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.kv.Txn(ctx, req)
		return err
	})
	return r, err
}

// sweepPermits removes n's keys in semaphores whose tokens are not known. The keys'
// values say which tokens they are.
func (s *Store) sweepPermits(ctx context.Context, n *session, semaphores map[string]string, known func(key string, token uint64) bool) (removed int, err error) {
	own := &sem{own: strconv.FormatInt(n.lease, 16) + "-"}
	for dir, name := range semaphores {
		keys, err := s.read(ctx, dir+own.own, own.ownEnd(dir), 0)
		if err != nil {
			return removed, err
		}
		keys = slices.DeleteFunc(keys, func(kv *mvccpb.KeyValue) bool { return known(name, permitToken(string(kv.Value))) })
		for part := range slices.Chunk(keys, int(s.most.Load())-1) {
			gone, err := s.removePermits(ctx, name, part)
			if removed += gone; err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

func (s *Store) removePermits(ctx context.Context, name string, keys []*mvccpb.KeyValue) (removed int, err error) {
	req := &pb.TxnRequest{}
	for _, kv := range keys {
		req.Success = append(req.Success, txnOp(&pb.TxnRequest{Compare: one(ifCreated(string(kv.Key), kv.CreateRevision)),
			Success: ops(deleteOp(string(kv.Key)))}))
	}
	r, err := s.txn(ctx, req)
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
			if g := m.tokens[permitToken(string(kv.Value))]; g != nil && !g.permit.unsure {
				t.endLocked(g)
			}
		}
	}
	return removed, nil
}
