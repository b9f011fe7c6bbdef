package etcd

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/upstream"
)

const (
	listPage   = 1000 // keys in one read
	listLeases = 64   // leases of a page whose time left is asked for
)

// List returns locks in the order of their escaped names, and then permits in the
// order of their semaphores'; a cursor is where in that order to go on. The locks of other programs on etcd's own lock recipe are
// among them.
func (s *Store) List(ctx context.Context, prefix, cursor string, limit int) (locks []upstream.Lock, next string, err error) {
	if limit <= 0 {
		return nil, "", nil
	}
	if cursor != "" && !strings.HasPrefix(cursor, s.root) {
		return nil, "", fmt.Errorf("%w: %q is no cursor of a list", ErrRefused, cursor)
	}
	permits := s.root + permitDir + "/"
	if !strings.HasPrefix(cursor, permits) {
		if locks, next, err = s.listLocks(ctx, prefix, cursor, limit); err != nil || next != "" {
			return locks, next, err
		}
		cursor = permits
	}
	if limit -= len(locks); limit == 0 {
		return locks, cursor, nil
	}
	held, next, err := s.listPermits(ctx, prefix, cursor, limit)
	return append(locks, held...), next, err
}

func (s *Store) listLocks(ctx context.Context, prefix, cursor string, limit int) (locks []upstream.Lock, next string, err error) {
	dir := s.dir(prefix)
	from, to := max(dir[:len(dir)-1], cursor), prefixEnd(dir[:len(dir)-1])
	for {
		page, err := s.read(ctx, from, to, listPage)
		if err != nil {
			return nil, "", err
		}
		full := len(page) == listPage
		for len(page) > 0 && len(locks) < limit {
			lock, dir, ok := s.lock(string(page[0].Key))
			if permits := s.root + permitDir + "/"; strings.HasPrefix(string(page[0].Key), permits) {
				from = dirEnd(permits)
				page = page[sort.Search(len(page), func(i int) bool { return string(page[i].Key) >= from }):]
				continue
			}
			if !ok { // a session's, or no lock's
				from, page = string(page[0].Key)+"\x00", page[1:]
				continue
			}
			n := 1
			for n < len(page) && strings.HasPrefix(string(page[n].Key), dir) {
				n++
			}
			queue := page[:n]
			if page = page[n:]; len(page) == 0 && full { // there may be more of it
				if queue, err = s.read(ctx, dir, dirEnd(dir), 0); err != nil {
					return nil, "", err
				}
			}
			if from = dirEnd(dir); len(queue) > 0 {
				locks = append(locks, s.describe(lock, dir, queue))
			}
		}
		switch {
		case len(page) > 0 || full && len(locks) == limit:
			s.timeLeft(ctx, locks)
			return locks, from, nil
		case !full:
			s.timeLeft(ctx, locks)
			return locks, "", nil
		}
	}
}

// bounded makes one call that takes Timeout at most.
func (s *Store) bounded(ctx context.Context, f func(context.Context) error) (asked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.client.call(ctx, f)
}

// prefixEnd is the first key behind those that begin with p.
func prefixEnd(p string) string {
	b := []byte(p)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return "\x00"
}

// read reads a piece of the keys; limit 0 is all.
func (s *Store) read(ctx context.Context, from, to string, limit int64) ([]*mvccpb.KeyValue, error) {
	req := &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(to), Limit: limit}
	var r *pb.RangeResponse
	_, err := s.bounded(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.kv.Range(ctx, req)
		return err
	})
	if err != nil {
		return nil, s.cfg.explain(ErrNoAnswer, fmt.Errorf("list locks: %w", err))
	}
	return r.GetKvs(), nil
}

// describe makes a lock of its queue.
func (s *Store) describe(lock, dir string, queue []*mvccpb.KeyValue) upstream.Lock {
	evaluate(queue, "") // puts it in order
	first := queue[0]
	key := string(first.Key)
	_, token, ours := holder(key, dir)
	l := upstream.Lock{Key: lock, Name: key, Mode: modeOf(first), Holder: "lease " + strconv.FormatInt(first.Lease, 16),
		Foreign: !ours || len(first.Value) == 0, Left: -1, Base: uint64(first.CreateRevision)}
	if first.Lease == 0 {
		l.Holder = "no lease: it ends by hand only"
	}
	if !l.Foreign {
		l.Daemon, l.Token = daemonOf(first.Lease), token
	}
	holders := 1
	for holders < len(queue) && sharedKV(first) && sharedKV(queue[holders]) {
		holders++
	}
	l.Waiters = len(queue) - holders
	n := s.cur.Load()
	for _, kv := range queue[:holders] {
		l.Mine = l.Mine || n != nil && kv.Lease == n.lease
	}
	return l
}

// timeLeft fills in how long the holders' leases last, if they are not too many.
func (s *Store) timeLeft(ctx context.Context, locks []upstream.Lock) {
	left := map[string]int64{}
	for i := range locks {
		l := &locks[i]
		hex, ok := strings.CutPrefix(l.Holder, "lease ")
		if !ok {
			continue
		}
		if _, asked := left[hex]; !asked && len(left) < listLeases {
			left[hex] = -1
			id, _ := strconv.ParseInt(hex, 16, 64)
			if r, err := s.lookUp(ctx, id, false); err == nil && r.TTL >= 0 {
				left[hex] = r.TTL * int64(time.Second)
			}
		}
		if d, asked := left[hex]; asked {
			l.Left = d
		}
	}
}

func (s *Store) lookUp(ctx context.Context, lease int64, keys bool) (r *pb.LeaseTimeToLiveResponse, err error) {
	_, err = s.bounded(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.lease.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: lease, Keys: keys})
		return err
	})
	return r, err
}

// Sweep removes keys under our lease whose tokens are not known. etcd keeps a list
// of a lease's keys, so nobody else's are read.
func (s *Store) Sweep(ctx context.Context, known func(key string, token uint64) bool) (removed int, err error) {
	n := s.cur.Load()
	if n == nil || n.gone.Load() {
		return 0, nil
	}
	r, err := s.lookUp(ctx, n.lease, true)
	if err != nil {
		return 0, s.cfg.explain(ErrNoAnswer, fmt.Errorf("sweep: %w", err))
	}
	var stale []string
	semaphores := map[string]string{} // by what their keys of one kind begin with
	for _, k := range r.Keys {
		if name, dir, _, ok := s.semaphore(string(k)); ok {
			semaphores[dir] = name
			continue
		}
		lock, dir, ok := s.lock(string(k))
		if !ok {
			continue
		}
		if lease, token, ours := holder(string(k), dir); ours && lease == n.lease && !known(lock, token) {
			stale = append(stale, string(k))
		}
	}
	for part := range slices.Chunk(stale, int(s.most.Load())) {
		gone, err := s.remove(ctx, part)
		if removed += gone; err != nil {
			return removed, s.cfg.explain(ErrNoAnswer, fmt.Errorf("sweep: %w", err))
		}
	}
	gone, err := s.sweepPermits(ctx, n, semaphores, known)
	if removed += gone; err != nil {
		return removed, s.cfg.explain(ErrNoAnswer, fmt.Errorf("sweep: %w", err))
	}
	return removed, nil
}

func (s *Store) remove(ctx context.Context, keys []string) (removed int, err error) {
	req := &pb.TxnRequest{}
	for _, k := range keys {
		req.Success = append(req.Success, deleteOp(k))
	}
	var r *pb.TxnResponse
	if _, err = s.bounded(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.kv.Txn(ctx, req)
		return err
	}); err != nil {
		return 0, err
	}
	t := &s.lockKeys
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, k := range keys {
		removed += int(r.Responses[i].GetResponseDeleteRange().Deleted)
		if lock, _, _ := s.lock(k); t.byLock[lock] != nil && t.byLock[lock].key == k {
			t.removeLocked(t.byLock[lock])
		}
	}
	return removed, nil
}
