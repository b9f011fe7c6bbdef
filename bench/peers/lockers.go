package main

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
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

// newClient returns go-redis with its defaults, except for the time that a caller may wait for a
// connection, because 64 callers share its default pool.
func newClient(a *load.PairsArgs) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: a.Addr, PoolTimeout: 30 * time.Second})
}

// goRedis is the recipe by hand: SET NX PX, which is repeated after a pause if the caller waits,
// and then compare and delete.
type goRedis struct {
	*redis.Client
	*load.PairsArgs
}

var compareAndDelete = redis.NewScript(`
if redis.call("GET", KEYS[1]) == ARGV[1] then
	return redis.call("DEL", KEYS[1])
end
return 0`)

func openGoRedis(a *load.PairsArgs) (load.Locker, error) { return &goRedis{newClient(a), a}, nil }

func (g *goRedis) Lock(ctx context.Context, _ int,
	key string) (func(context.Context) error, error) {
	token := rand.Text()
	if err := g.take(ctx, key, token); err != nil {
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

func (g *goRedis) take(ctx context.Context, key, token string) error {
	for {
		err := g.SetArgs(ctx, key, token, redis.SetArgs{Mode: "NX", TTL: g.TTL}).Err()
		if !errors.Is(err, redis.Nil) || g.Wait == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(g.Backoff):
		}
	}
}

type bsm struct {
	c       *redis.Client
	l       *redislock.Client
	ttl     time.Duration
	options *redislock.Options
}

func openRedislock(a *load.PairsArgs) (load.Locker, error) {
	c := newClient(a)
	b := &bsm{c: c, l: redislock.New(c), ttl: a.TTL}
	if a.Wait != 0 {
		b.options = &redislock.Options{RetryStrategy: redislock.LinearBackoff(a.Backoff)}
	}
	return b, nil
}

func (b *bsm) Lock(ctx context.Context, _ int, key string) (func(context.Context) error, error) {
	l, err := b.l.Obtain(ctx, key, b.ttl, b.options)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func (b *bsm) Close() error { return b.c.Close() }

type sync struct {
	c       *redis.Client
	rs      *redsync.Redsync
	options []redsync.Option
}

func openRedsync(a *load.PairsArgs) (load.Locker, error) {
	c, tries := newClient(a), 1
	if a.Wait != 0 {
		tries = math.MaxInt
	}
	options := []redsync.Option{redsync.WithExpiry(a.TTL), redsync.WithTries(tries)}
	if a.Backoff > 0 {
		options = append(options, redsync.WithRetryDelay(a.Backoff))
	}
	return &sync{c, redsync.New(redsyncpool.NewPool(c)), options}, nil
}

func (s *sync) Lock(ctx context.Context, _ int, key string) (func(context.Context) error, error) {
	m := s.rs.NewMutex(key, s.options...)
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

type rueidisLocker struct {
	l    rueidislock.Locker
	wait bool
}

// openRueidislock is for one Redis. It uses the way of client tracking that is faster if no caller
// waits: a client is not told of its own writes. The default of 20 ms for TryNextAfter is too short
// on busy cores.
func openRueidislock(a *load.PairsArgs) (load.Locker, error) { return newRueidislock(a, true) }

// openRueidislockLoop uses the library's default way of client tracking.
func openRueidislockLoop(a *load.PairsArgs) (load.Locker, error) { return newRueidislock(a, false) }

func newRueidislock(a *load.PairsArgs, noLoop bool) (load.Locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{a.Addr}},
		KeyMajority:    1,
		KeyValidity:    a.TTL,
		NoLoopTracking: noLoop,
		TryNextAfter:   time.Second,
	})
	if err != nil {
		return nil, err
	}
	return &rueidisLocker{l, a.Wait != 0}, nil
}

func (r *rueidisLocker) Lock(ctx context.Context, _ int,
	key string) (func(context.Context) error, error) {
	lock := r.l.TryWithContext
	if r.wait {
		lock = r.l.WithContext
	}
	_, cancel, err := lock(ctx, key)
	if err != nil {
		return nil, err
	}
	return func(context.Context) error { cancel(); return nil }, nil
}

func (r *rueidisLocker) Close() error { r.l.Close(); return nil }
