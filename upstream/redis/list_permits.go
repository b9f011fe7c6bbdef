package redis

import (
	"context"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// ownerOf returns the <prefix><key> to which a name at the server belongs. If permits is true,
// the name is the set of that semaphore; otherwise it is the lock itself. The result is empty for
// all other siblings.
func (s *Store) ownerOf(name string) (of string, permits bool) {
	if !strings.HasPrefix(name, siblingPrefix) {
		return name, false
	}
	_, of, ok := strings.Cut(name, "}:"+permitsKind)
	if !ok || s.siblings(of)+permitsKind+of != name {
		return "", false
	}
	return of, true
}

// queryPermits is queryLock for a semaphore. It skips the first skip holders, and reads one holder
// more than the page has room for.
func (s *Store) queryPermits(
	ctx context.Context, p goredis.Pipeliner, name, of string, now int64, skip, room int,
) query {
	since := "(" + strconv.FormatInt(now, 10)
	return query{name: of, set: name, skip: skip,
		permits: p.ZRangeByScoreWithScores(ctx, name,
			&goredis.ZRangeBy{Min: since, Max: "+inf", Offset: int64(skip), Count: int64(room) + 1}),
		waiters: p.ZCount(ctx, s.siblings(of)+"permitwaiters:"+of, since, "+inf")}
}

// semaphore reads the replies about a semaphore.
func (q *query) semaphore(s *Store, now int64) []upstream.Lock {
	lock := upstream.Lock{Key: strings.TrimPrefix(q.name, s.cfg.Prefix), Name: q.set,
		Mode: cache.Permit, Waiters: -1}
	if q.waiters.Err() == nil {
		lock.Waiters = int(q.waiters.Val())
	}
	return s.holders(lock, q.permits.Val(), now)
}
