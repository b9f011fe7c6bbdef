package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/locksidecar/locksidecar/bench/load"
)

var errNotHeld = errors.New("not held any more")

// newClient is go-redis as it comes, but for the time that a caller may wait for
// a connection: 64 callers share its default pool.
func newClient(a *load.PairsArgs) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: a.Addr, PoolTimeout: 30 * time.Second})
}

// goRedis is the recipe by hand: SET NX PX, then compare and delete.
type goRedis struct {
	*redis.Client
	ttl time.Duration
}

var compareAndDelete = redis.NewScript(`
if redis.call("GET", KEYS[1]) == ARGV[1] then
	return redis.call("DEL", KEYS[1])
end
return 0`)

func openGoRedis(a *load.PairsArgs) (load.Locker, error) {
	return &goRedis{newClient(a), a.TTL}, nil
}

func (g *goRedis) Lock(ctx context.Context, _ int, key string) (func(context.Context) error, error) {
	token := rand.Text()
	if err := g.SetArgs(ctx, key, token, redis.SetArgs{Mode: "NX", TTL: g.ttl}).Err(); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		n, err := compareAndDelete.Run(ctx, g.Client, []string{key}, token).Int()
		if err == nil && n != 1 {
			err = errNotHeld
		}
		return err
	}, nil
}

type bsm struct {
	c   *redis.Client
	l   *redislock.Client
	ttl time.Duration
}

func openRedislock(a *load.PairsArgs) (load.Locker, error) {
	c := newClient(a)
	return &bsm{c, redislock.New(c), a.TTL}, nil
}

func (b *bsm) Lock(ctx context.Context, _ int, key string) (func(context.Context) error, error) {
	l, err := b.l.Obtain(ctx, key, b.ttl, nil)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func (b *bsm) Close() error { return b.c.Close() }

type sync struct {
	c   *redis.Client
	rs  *redsync.Redsync
	ttl time.Duration
}

func openRedsync(a *load.PairsArgs) (load.Locker, error) {
	c := newClient(a)
	return &sync{c, redsync.New(redsyncpool.NewPool(c)), a.TTL}, nil
}

func (s *sync) Lock(ctx context.Context, _ int, key string) (func(context.Context) error, error) {
	m := s.rs.NewMutex(key, redsync.WithExpiry(s.ttl), redsync.WithTries(1))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		ok, err := m.UnlockContext(ctx)
		if err == nil && !ok {
			err = errNotHeld
		}
		return err
	}, nil
}

func (s *sync) Close() error { return s.c.Close() }

type rueidisLocker struct{ l rueidislock.Locker }

// openRueidislock uses the faster of the library's two ways of client tracking,
// for one Redis. TryNextAfter's default of 20 ms runs out where cores are busy.
func openRueidislock(a *load.PairsArgs) (load.Locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{a.Addr}},
		KeyMajority:    1,
		KeyValidity:    a.TTL,
		NoLoopTracking: true,
		TryNextAfter:   time.Second,
	})
	if err != nil {
		return nil, err
	}
	return &rueidisLocker{l}, nil
}

func (r *rueidisLocker) Lock(ctx context.Context, _ int, key string) (func(context.Context) error, error) {
	_, cancel, err := r.l.TryWithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return func(context.Context) error { cancel(); return nil }, nil
}

func (r *rueidisLocker) Close() error { r.l.Close(); return nil }
