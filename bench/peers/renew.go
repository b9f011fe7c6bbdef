package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	ourredis "github.com/locksidecar/locksidecar/upstream/redis"
)

// renewing is one caller that renews one pipeline of locks after the other.
type renewing struct {
	args  load.RenewArgs
	keys  []string
	open  func(*renewing) error
	renew func(ctx context.Context, from, to int) error
	close func()
}

func newRenewing(open func(*renewing) error) func() harness.Load {
	return func() harness.Load { return &renewing{open: open} }
}

func (r *renewing) Open(spec *harness.Spec) (int, error) {
	if err := json.Unmarshal(spec.Args, &r.args); err != nil {
		return 0, err
	}
	r.keys = make([]string, r.args.Keys)
	for i := range r.keys {
		r.keys[i] = string(load.RenewKey(nil, i))
	}
	return 1, r.open(r)
}

func (r *renewing) Run(ctx context.Context, _ int, rec *harness.Rec) error {
	for from := 0; ; {
		began, to := time.Now(), min(from+r.args.Batch, len(r.keys))
		if err := r.renew(ctx, from, to); err != nil {
			return err
		}
		took := time.Since(began)
		for range to - from {
			rec.Op(took)
		}
		if rec.Stopped() {
			return nil
		}
		from = to % len(r.keys)
	}
}

func (r *renewing) Close() { r.close() }

// bare renews with PEXPIRE through go-redis, which is the least work for a renewal.
func bare(r *renewing) error {
	c := redis.NewClient(&redis.Options{Addr: r.args.Addr})
	for i, k := range r.keys {
		r.keys[i] = ourredis.DefaultPrefix + k
	}
	r.close = func() { c.Close() }
	r.renew = func(ctx context.Context, from, to int) error {
		p := c.Pipeline()
		for _, k := range r.keys[from:to] {
			p.PExpire(ctx, k, r.args.TTL)
		}
		done, err := p.Exec(ctx)
		if err != nil {
			return err
		}
		for i, d := range done {
			if !d.(*redis.BoolCmd).Val() {
				return fmt.Errorf("%s is not there", r.keys[from+i])
			}
		}
		return nil
	}
	return nil
}

// holder is the instance that has the locks, in all workers.
const holder = "AAAAAAAAAAAAAAAAAAAAAA"

// driver renews with the product's own store driver, as the daemon does.
func driver(r *renewing) error {
	cfg, err := ourredis.Parse("redis://" + r.args.Addr + "?timeout=30s")
	if err != nil {
		return err
	}
	cfg.Instance = holder
	s, err := ourredis.Open(context.Background(), cfg)
	if err != nil {
		return err
	}
	r.close = func() { s.Close() }
	ops, results := make([]upstream.Op, r.args.Batch), make([]upstream.Result, r.args.Batch)
	apply := func(ctx context.Context, kind cache.OpKind, want cache.Status, from, to int) error {
		n := to - from
		for i := range n {
			ops[i] = upstream.Op{Kind: kind, Key: r.keys[from+i], Token: uint64(from + i + 1),
				TTL: r.args.TTL}
		}
		if err := s.Apply(ctx, ops[:n], results[:n]); err != nil {
			return err
		}
		for i := range n {
			if results[i].Status != want {
				return fmt.Errorf("%v %s: %v", kind, r.keys[from+i], results[i].Status)
			}
		}
		return nil
	}
	r.renew = func(ctx context.Context, from, to int) error {
		return apply(ctx, cache.OpRenew, cache.Done, from, to)
	}
	if r.args.Take {
		for from := 0; from < len(r.keys); from += r.args.Batch {
			if err := apply(context.Background(), cache.OpTry, cache.Granted, from,
				min(from+r.args.Batch, len(r.keys))); err != nil {
				return err
			}
		}
	}
	return nil
}
