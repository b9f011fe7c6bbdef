package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// pttls has the remaining times of keys in a Redis.
type pttls struct {
	n, missing int
	least      time.Duration
	fewest     int64 // the smallest number of keys so far
}

// direct returns a connection to the Redis, without a daemon.
func (x *endured) direct() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: x.r.Addr, PoolSize: 1, MaxRetries: -1,
		ReadTimeout: time.Minute})
}

// look checks samples of the keys again and again, until ctx ends. Each sample is a different one.
func (x *endured) look(ctx context.Context) error {
	c := x.direct()
	defer c.Close()
	x.looked.least, x.looked.fewest = enduredTTL, 1<<62
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil
		}
		pause.Reset(min(enduredLooks, enduredBriefly/5))
		if err := x.looked.more(x.e.Ctx, c, x.n); err != nil {
			return err
		}
	}
}

// more checks a sample of n keys, in small parts, because others use the server, too.
func (p *pttls) more(ctx context.Context, c *redis.Client, n int) error {
	size, err := c.DBSize(ctx).Result()
	if err != nil {
		return fmt.Errorf("count keys: %w", err)
	}
	p.fewest = min(p.fewest, size)
	for range samples / 50 {
		var left []*redis.DurationCmd
		_, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for range 50 {
				left = append(left, pipe.PTTL(ctx, "lock:"+string(load.RenewKey(nil, rand.IntN(n)))))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("look at keys: %w", err)
		}
		for _, l := range left {
			if p.n++; l.Val() < 0 {
				p.missing++
				continue
			}
			p.least = min(p.least, l.Val())
		}
	}
	return nil
}

// givenBack waits until a daemon holds no key with a prefix any more, and its store has none
// either.
func (e *Env) givenBack(d *Daemon, prefix string) error {
	ctx, cancel := context.WithTimeout(e.Ctx, 2*time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, d.Socket, client.Options{Name: "look"})
	if err != nil {
		return err
	}
	defer c.Close()
	held := func(after string) (int, string, error) {
		rows, next, err := c.List(ctx, prefix, after, 1)
		return len(rows), next, err
	}
	stored := func(after string) (int, string, error) {
		rows, next, err := c.Stored(ctx, prefix, after, 0)
		return len(rows), next, err
	}
	for _, page := range []func(string) (int, string, error){held, stored} {
		for after := ""; ; {
			rows, next, err := page(after)
			if err != nil {
				return fmt.Errorf("list what is left: %w", err)
			}
			if after = next; rows > 0 { // from the beginning again, a little later
				after = ""
				time.Sleep(time.Millisecond)
			} else if next == "" {
				break
			}
		}
	}
	return nil
}
