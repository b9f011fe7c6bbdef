package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol/client"
)

// keys returns n keys of 24 bytes after a hash tag, if there is one. The keys are new, because a
// key that was released may not be free yet.
func (b *bill) keys(tag string, n int) []string {
	b.batches++
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%sbench:unit%03d:%010d", tag, b.batches, i)
	}
	return keys
}

// hold acquires keys, as many at a time as a batch may have, and keeps them.
func hold(ctx context.Context, c *client.Client, keys []string, ttl time.Duration) error {
	for part := range slices.Chunk(keys, unitsBatch) {
		if _, err := c.AcquireMany(ctx, part, client.AcquireArgs{TTL: ttl}); err != nil {
			return fmt.Errorf("take %d locks: %w", len(part), err)
		}
	}
	return nil
}

// holdEvenly acquires keys one by one over a longer time, so that they become due one by one.
func holdEvenly(ctx context.Context, c *client.Client, keys []string, ttl,
	over time.Duration) error {
	began := time.Now()
	for i, k := range keys {
		time.Sleep(time.Until(began.Add(over * time.Duration(i) / time.Duration(len(keys)))))
		if _, err := c.Acquire(ctx, client.AcquireArgs{Key: k, TTL: ttl}); err != nil {
			return fmt.Errorf("take %s: %w", k, err)
		}
	}
	return nil
}

// handHold is how long a host keeps a key that the other host also uses. By then, the other host is
// in the queue.
const handHold = 5 * time.Millisecond

// churn has callers that acquire and release a key again and again.
type churn struct {
	done   atomic.Int64
	keys   []churned
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	err    error // guarded by mu
}

// churned is a key, and the host that had it last, counted from 1.
type churned struct {
	name string
	last atomic.Int32
}

// churning starts a caller for each key on each of the hosts. With several hosts, a grant counts if
// another host had the key before.
func churning(ctx context.Context, keys []string, hosts ...*client.Client) *churn {
	u := &churn{keys: make([]churned, len(keys))}
	ctx, u.cancel = context.WithCancel(ctx)
	for i, k := range keys {
		u.keys[i].name = k
		for host, c := range hosts {
			u.wg.Go(func() {
				for ctx.Err() == nil {
					if err := u.turn(ctx, c, i, int32(host+1), len(hosts) > 1); err != nil && ctx.Err() == nil {
						u.mu.Lock()
						u.err = errors.Join(u.err, err)
						u.mu.Unlock()
						return
					}
				}
			})
		}
	}
	return u
}

func (u *churn) turn(ctx context.Context, c *client.Client, i int, host int32, away bool) error {
	k := &u.keys[i]
	g, err := c.Acquire(ctx, client.AcquireArgs{Key: k.name, Owner: uint64(i), Wait: client.Forever,
		TTL: unitsLong})
	if err != nil {
		return err
	}
	if away {
		if k.last.Swap(host) != host {
			u.done.Add(1)
		}
		time.Sleep(handHold)
	} else {
		u.done.Add(1)
	}
	_, err = c.Release(context.WithoutCancel(ctx),
		client.ReleaseArgs{Key: k.name, Owner: uint64(i), Fence: g.Fence})
	return err
}

func (u *churn) count() (float64, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return float64(u.done.Load()), u.err
}

func (u *churn) stop() {
	u.cancel()
	u.wg.Wait()
}

// pollRow is the row of a waiting host that polls.
const pollRow = "a poll of a host that waits"

// work measures pairs and handoffs, of one key and of many.
func (b *bill) work(t twins) error {
	one, many := b.keys("", 1), b.keys("", pairCallers)
	for _, r := range []struct {
		row  string
		keys []string
		away bool
	}{
		{"a pair, one caller", one, false},
		{fmt.Sprintf("a pair, %d callers", pairCallers), many, false},
		{"from host to host, one key", one, true},
		{fmt.Sprintf("from host to host, %d keys at once", pairCallers), many, true},
	} {
		if err := b.with(t[0], func(c *client.Client) error {
			if !r.away {
				return b.churned(r.row, r.keys, c)
			}
			return b.with(t[1], func(other *client.Client) error {
				return b.churned(r.row, r.keys, c, other)
			})
		}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bill) churned(row string, keys []string, hosts ...*client.Client) error {
	u := churning(b.e.Ctx, keys, hosts...)
	defer u.stop()
	return b.flow(row, u.count)
}

// waiting makes one host hold keys, and the other wait for all of them, while do runs.
func (b *bill) waiting(t twins, keys []string, do func() error) error {
	return b.with(t[0], func(one *client.Client) error {
		if err := hold(b.e.Ctx, one, keys, unitsLong); err != nil {
			return err
		}
		return b.with(t[1], func(other *client.Client) error {
			ctx, cancel := context.WithCancel(b.e.Ctx)
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			for i, k := range keys {
				wg.Go(func() {
					_, _ = other.Acquire(ctx, client.AcquireArgs{Key: k, Owner: uint64(i), Wait: client.Forever,
						TTL: unitsLong})
				})
			}
			return do()
		})
	})
}
