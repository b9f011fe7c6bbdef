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
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/upstream"
)

const (
	listPage   = 1000 // keys in one read
	listLeases = 64   // leases of a page whose remaining times are read
)

// List returns locks in the order of their escaped names, and then permits in the order of their
// semaphores' names. A cursor is the position in that order from which to continue. The list
// includes the locks of other programs that use etcd's own lock recipe.
func (s *Store) List(ctx context.Context, prefix, cursor string, limit int) (
	locks []upstream.Lock, next string, err error,
) {
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

func (s *Store) listLocks(ctx context.Context, prefix, cursor string, limit int) (
	locks []upstream.Lock, next string, err error,
) {
	dir := s.dir(prefix)
	from, to := max(dir[:len(dir)-1], cursor), clientv3.GetPrefixRangeEnd(dir[:len(dir)-1])
	for {
		page, err := s.read(ctx, from, to, listPage)
		if err != nil {
			return nil, "", err
		}
		full := len(page) == listPage
		for len(page) > 0 && len(locks) < limit {
			lock, dir, n, end := s.group(page)
			queue := page[:n]
			if page, from = page[n:], end; lock == "" {
				continue
			}
			if len(page) == 0 && full { // the lock may have more keys
				if queue, err = s.read(ctx, dir, dirEnd(dir), 0); err != nil {
					return nil, "", err
				}
			}
			if len(queue) > 0 {
				locks = append(locks, s.describe(lock, dir, queue))
			}
		}
		more := len(page) > 0 || full
		if !more {
			from = ""
		}
		if !more || len(locks) == limit {
			s.timeLeft(ctx, locks)
			return locks, from, nil
		}
	}
}

// group returns how many keys at the beginning of page belong together, and the first key that can
// follow them. lock is empty if these keys belong to no lock.
func (s *Store) group(page []*mvccpb.KeyValue) (lock, dir string, n int, end string) {
	first := string(page[0].Key)
	lock, dir, ok := s.lock(first)
	switch permits := s.root + permitDir + "/"; {
	case ok:
		end = dirEnd(dir)
	case strings.HasPrefix(first, permits):
		end = dirEnd(permits)
	default: // a session's key, or one of no lock
		end = first + "\x00"
	}
	n = sort.Search(len(page), func(i int) bool { return string(page[i].Key) >= end })
	return lock, dir, n, end
}

// describe describes a lock by its queue, which it sorts.
func (s *Store) describe(lock, dir string, queue []*mvccpb.KeyValue) upstream.Lock {
	slices.SortFunc(queue, byAge)
	first := queue[0]
	_, token, ours := holder(string(first.Key), dir)
	l := s.describeHolder(lock, first, token, !ours || len(first.Value) == 0)
	holders := 1
	for holders < len(queue) && sharedKV(first) && sharedKV(queue[holders]) {
		holders++
		l.Mine = l.Mine || s.mine(queue[holders-1])
	}
	l.Waiters = len(queue) - holders
	return l
}

// describeHolder describes the holder that has this key.
func (s *Store) describeHolder(
	name string, kv *mvccpb.KeyValue, token uint64, foreign bool,
) upstream.Lock {
	l := upstream.Lock{
		Key: name, Name: string(kv.Key), Mode: modeOf(kv), Base: uint64(kv.CreateRevision),
		Holder: "lease " + strconv.FormatInt(kv.Lease, 16),
		Mine:   s.mine(kv), Foreign: foreign, Left: -1, Waiters: -1,
	}
	if kv.Lease == 0 {
		l.Holder = "no lease: it ends by hand only"
	}
	if !foreign {
		l.Daemon, l.Token = daemonOf(kv.Lease), token
	}
	return l
}

// mine reports whether a key is under the lease of the present session.
func (s *Store) mine(kv *mvccpb.KeyValue) bool {
	n := s.cur.Load()
	return n != nil && kv.Lease == n.lease
}

// timeLeft fills in the remaining times of the holders' leases, at most listLeases of them.
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
			if r, err := s.leaseInfo(ctx, id, false); err == nil && r.TTL >= 0 {
				left[hex] = r.TTL * int64(time.Second)
			}
		}
		if d, asked := left[hex]; asked {
			l.Left = d
		}
	}
}

func (s *Store) leaseInfo(ctx context.Context, lease int64, keys bool) (
	*pb.LeaseTimeToLiveResponse, error,
) {
	req := &pb.LeaseTimeToLiveRequest{ID: lease, Keys: keys}
	return bounded(ctx, s, s.client.lease.LeaseTimeToLive, req)
}

// Sweep removes keys under our lease whose tokens are not known. etcd keeps a list of a lease's
// keys, so the keys of others are not read. The keys of a lost session stay until it has ended: see
// endSession.
func (s *Store) Sweep(ctx context.Context, known func(key string, token uint64) bool) (
	removed int, err error,
) {
	n := s.cur.Load()
	if n == nil || n.lost.Load() {
		return 0, nil
	}
	r, err := s.leaseInfo(ctx, n.lease, true)
	if err != nil {
		return 0, s.cfg.explain(ErrNoAnswer, fmt.Errorf("sweep: %w", err))
	}
	var stale []string
	semaphores := map[string]string{} // by the beginning of their keys of one kind
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
	for part := range slices.Chunk(stale, int(s.maxOps.Load())) {
		gone, err := s.remove(ctx, part)
		if removed += gone; err != nil {
			return removed, err
		}
	}
	gone, err := s.sweepPermits(ctx, n, semaphores, known)
	return removed + gone, err
}

func (s *Store) remove(ctx context.Context, keys []string) (removed int, err error) {
	req := &pb.TxnRequest{}
	for _, k := range keys {
		req.Success = append(req.Success, deleteOp(k))
	}
	r, err := s.txn(ctx, "sweep", req)
	if err != nil {
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
