package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// One client holds a million locks of 30 s on one Redis for ten minutes. Each lock is due after
// 0.31 of its TTL, so the daemon makes 107,000 renewals per second. No lock may be lost: the scene
// checks the remaining time of keys in the store, which is what counts. Meanwhile another session
// acquires a lock every hundredth of a second. If the acquire before it was late, the time of an
// acquire counts from when it was due. For comparison, a bare SET NX is sent to the same Redis as
// often. It shows what the machine and Redis leave to any client.

const (
	enduranceScene = "endurance"
	enduredLocks   = 1_000_000
	enduredShort   = 50_000
	enduredTTL     = 30 * time.Second
	enduredFor     = 10 * time.Minute
	enduredBriefly = 10 * time.Second
	enduredBreath  = 10 * time.Millisecond
	enduredLooks   = 5 * time.Second // between two checks of the store
	enduredP99     = 10              // ms
)

func endurance(e *Env) error {
	n, long := enduredLocks, enduredFor
	if e.Short {
		n, long = enduredShort, enduredBriefly
	}
	m, err := e.endure(n, long)
	if err != nil {
		return err
	}
	rep, name := e.Report, fmt.Sprintf("%d locks, %v", n, long)
	rep.Add(enduranceScene, name, m)
	e.Logf("%s  %s: %.0f renewals a second, the least left %.1f s; p99 of another's acquire %.2f ms, of a bare SET NX %.2f ms; cores %.2f, Redis %.2f",
		enduranceScene, name, m["renewals_s"], m["least_pttl_s"], m["p99_us"]/1000, m["bare_p99_us"]/1000,
		m["daemon_cores"], m["redis_cores"])
	rep.AtMost("a fresh acquire while "+name+" are renewed, p99 ms",
		[]float64{m["p99_us"] / 1000}, enduredP99)
	rep.Limit("… a bare SET NX at the same Redis meanwhile, p99 ms",
		[]float64{m["bare_p99_us"] / 1000})
	rep.AtLeast("… the least time left of a key at the store, s", []float64{m["least_pttl_s"]}, 1,
		enduredTTL.Seconds()/2)
	return nil
}

// endured is the state of the scene.
type endured struct {
	e      *Env
	n      int
	r      *harness.Redis
	d      *Daemon
	lost   atomic.Int64
	other  harness.Hist
	bare   harness.Hist
	looked pttls
}

func (e *Env) endure(n int, long time.Duration) (harness.Metrics, error) {
	r, d, stop, err := e.redisDaemon(enduranceScene)
	if err != nil {
		return nil, err
	}
	defer stop()
	x := &endured{e: e, n: n, r: r, d: d}
	empty := harness.RSS(d.PID())
	holder, err := client.Dial(e.Ctx, d.Socket, client.Options{Name: "holder",
		OnLost: func(client.Lost) { x.lost.Add(1) }})
	if err != nil {
		return nil, err
	}
	defer holder.Close()
	began := time.Now()
	if err := takeAll(e.Ctx, holder, n, enduredTTL); err != nil {
		return nil, fmt.Errorf("take %d locks: %w", n, err)
	}
	e.Logf("%s  %d locks are taken after %.1f s", enduranceScene, n, time.Since(began).Seconds())
	m, err := x.watched(long)
	if err != nil {
		return nil, err
	}
	m["rss_b_lock"] = float64(harness.RSS(d.PID())-empty) / float64(n)
	if err := x.judge(m); err != nil {
		return nil, err
	}
	return m, errors.Join(holder.Close(), e.givenBack(d, "bench:"))
}

// watched runs another session and checks the keys, for the time long.
func (x *endured) watched(long time.Duration) (harness.Metrics, error) {
	ctx, cancel := context.WithTimeout(x.e.Ctx, long)
	defer cancel()
	before, err := x.r.Info()
	if err != nil {
		return nil, err
	}
	cpu, began := harness.CPU(x.d.PID()), time.Now()
	beside := make(chan error, 2)
	go func() { beside <- x.look(ctx) }()
	go func() { beside <- x.set(ctx) }()
	err = x.visit(ctx)
	cancel()
	if err = errors.Join(err, <-beside, <-beside, x.e.Ctx.Err()); err != nil {
		return nil, err
	}
	used, took := harness.CPU(x.d.PID())-cpu, time.Since(began)
	after, err := x.r.Info()
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	cores := func(d time.Duration) float64 { return d.Seconds() / took.Seconds() }
	h, bare := &x.other, &x.bare
	return harness.Metrics{
		"ops_s": float64(h.N()) / took.Seconds(), "p50_us": us(h.Quantile(0.5)),
		"p99_us":  us(h.Quantile(0.99)),
		"p999_us": us(h.Quantile(0.999)), "max_us": us(h.Max()),
		"bare_p50_us": us(bare.Quantile(0.5)), "bare_p99_us": us(bare.Quantile(0.99)),
		"bare_max_us": us(bare.Max()),
		"renewals_s":  (after.Renewals - before.Renewals) / took.Seconds(), "daemon_cores": cores(used),
		"redis_cores": cores(after.CPU - before.CPU),
		"redis_conns": float64(x.r.Clients()), "least_pttl_s": x.looked.least.Seconds(),
		"looked_at": float64(x.looked.n),
	}, err
}

// visit acquires and releases a new key again and again, until ctx ends.
func (x *endured) visit(ctx context.Context) error {
	c, err := client.Dial(ctx, x.d.Socket, client.Options{Name: "visitor"})
	if err != nil {
		return err
	}
	defer c.Close()
	if err = again(ctx, &x.other, func(i int) (func() error, error) {
		key := fmt.Sprintf("bench:visitor:%d", i)
		g, err := c.Acquire(x.e.Ctx, client.AcquireArgs{Key: key})
		return func() error {
			_, err := c.Release(x.e.Ctx, client.ReleaseArgs{Key: key, Fence: g.Fence})
			return err
		}, err
	}); err != nil {
		return fmt.Errorf("another session: %w", err)
	}
	return nil
}

// set does the same without a daemon.
func (x *endured) set(ctx context.Context) error {
	c := x.direct()
	defer c.Close()
	if err := again(ctx, &x.bare, func(i int) (func() error, error) {
		key := fmt.Sprintf("bare:%d", i)
		return func() error { return c.Del(x.e.Ctx, key).Err() },
			c.SetArgs(x.e.Ctx, key, "", redis.SetArgs{Mode: "NX", TTL: enduredTTL}).Err()
	}); err != nil {
		return fmt.Errorf("bare SET NX: %w", err)
	}
	return nil
}

// again acquires and releases, once per enduredBreath, until ctx ends.
func again(ctx context.Context, h *harness.Hist,
	take func(i int) (giveUp func() error, err error)) error {
	due := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		began := due
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
			began = time.Now()
		}
		due = due.Add(enduredBreath)
		giveUp, err := take(i)
		if err != nil {
			return err
		}
		h.Add(time.Since(began))
		if err := giveUp(); err != nil {
			return err
		}
	}
	return nil
}

// judge reports what is wrong, according to the client's pushes and the daemon's own counts.
func (x *endured) judge(m harness.Metrics) error {
	all, err := x.d.read(x.e.Ctx)
	if err != nil {
		return err
	}
	m["lost"] = float64(x.lost.Load())
	m["least_slack_s"] = all.least("locksidecar_renewal_slack_seconds")
	m["unanswered"] = all.sum("locksidecar_renewals_total", "unanswered")
	lost := all.sum("locksidecar_lost_total", "") + all.sum("locksidecar_expired_leases_total",
		"") + all.sum("locksidecar_renewals_total", "not_held")
	rep := x.e.Report
	if m["lost"]+lost > 0 {
		rep.Fault("%s: %.0f locks were called lost, and the daemon counts %.0f", enduranceScene,
			m["lost"], lost)
	}
	if x.looked.missing > 0 {
		rep.Fault("%s: %d of %d keys looked at were not there", enduranceScene,
			x.looked.missing, x.looked.n)
	}
	if held := all.sum("locksidecar_held_locks", ""); int(held) != x.n ||
		x.looked.fewest < int64(x.n) {
		rep.Fault("%s: of %d locks %.0f are held at the end, and the store had %d keys at the fewest",
			enduranceScene, x.n, held, x.looked.fewest)
	}
	return nil
}
