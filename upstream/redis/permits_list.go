package redis

import (
	"context"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// siblings is what the names beside <prefix><key> begin with.
func (s *Store) siblings(name string) string {
	if s.cluster == nil {
		return s.names[0].siblings
	}
	return s.names[slotOf("", name)].siblings
}

// ofWhat is the <prefix><key> that a name at the server stands for: its own, or, if
// permits, that of the semaphore whose set it is. It is empty for the other siblings.
func (s *Store) ofWhat(name string) (of string, permits bool) {
	if !strings.HasPrefix(name, siblingPrefix) {
		return name, false
	}
	_, of, ok := strings.Cut(name, "}:"+permitsKind)
	if !ok || s.siblings(of)+permitsKind+of != name {
		return "", false
	}
	return of, true
}

// lookAtPermits is lookAt for the semaphore of a name: one holder more than there is
// room for, after the first skip of them.
func (s *Store) lookAtPermits(ctx context.Context, p goredis.Pipeliner, name, of string, now int64, skip, room int) look {
	since := "(" + strconv.FormatInt(now, 10)
	return look{name: of, set: name, skip: skip,
		permits: p.ZRangeByScoreWithScores(ctx, name, &goredis.ZRangeBy{Min: since, Max: "+inf", Offset: int64(skip), Count: int64(room) + 1}),
		waiters: p.ZCount(ctx, s.siblings(of)+"permitwaiters:"+of, since, "+inf")}
}

// semaphore reads the answers about one.
func (l *look) semaphore(s *Store, now int64) []upstream.Lock {
	lock := upstream.Lock{Key: strings.TrimPrefix(l.name, s.cfg.Prefix), Name: l.set, Mode: cache.Permit, Waiters: -1}
	if l.waiters.Err() == nil {
		lock.Waiters = int(l.waiters.Val())
	}
	return s.holders(lock, l.permits.Val(), now)
}
