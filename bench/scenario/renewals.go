package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// A million locks on one Redis are renewed: by the store's driver in batches as large as the
// daemon's, and by a daemon that holds them. They are compared with PEXPIRE of the same keys,
// pipelined through go-redis, which checks no token. Locks become due as they were acquired, at
// different times. To make all of them due at once, the daemon is stopped for longer than a third
// of their TTL, as in a suspend, and then continued.

const (
	renewBatch  = 256 // as large as the daemon's
	renewTTL    = 10 * time.Minute
	daemonTTL   = 45 * time.Second
	daemonStops = daemonTTL/3 + 500*time.Millisecond
)

func renewals(e *Env) error {
	const scene = "renewals"
	n := 1_000_000
	if e.Short {
		n = 100_000
	}
	r, err := e.redis()
	if err != nil {
		return err
	}
	defer r.Stop()
	if err := e.buildPeers(); err != nil {
		return err // without the locks there is nothing to measure
	}
	args := load.RenewArgs{Addr: r.Addr, Keys: n, Batch: renewBatch, TTL: renewTTL}
	rows := []row{
		{"PEXPIRE", e.renewing("renew-bare", args, r), perMillion},
		{"driver", e.renewing("renew-driver", args, r), perMillion},
	}
	take := args
	take.Take = true
	if _, err := e.renewing("renew-driver", take, r)(); err != nil {
		return fmt.Errorf("take %d locks: %w", n, err)
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	if err := e.daemonRenewals(scene, n, r); err != nil {
		e.Report.Fault("%s: %v", scene, err) // the measured rows are still reported
	}
	rep := e.Report
	slower := func(a, b string) []float64 { return rep.Ratio(scene, a, b, "s_million") }
	rep.AtMost("time of a million renewals, to PEXPIRE", slower("driver", "PEXPIRE"), 1.7)
	rep.AtMost("time of a million renewals by a daemon that holds them, to PEXPIRE",
		slower(daemonRow, daemonPeer), 1.7)
	return nil
}

const (
	daemonRow  = "daemon, all due at once"
	daemonPeer = "PEXPIRE of the daemon's"
)

// perMillion adds the time for a million renewals at the measured rate.
func perMillion(o *harness.Outcome, m harness.Metrics) {
	if o.Hist.N() > 0 {
		m["s_million"] = 1e6 / o.Rate()
	}
}

func (e *Env) renewing(name string, args load.RenewArgs,
	r *harness.Redis) func() (*harness.Outcome, error) {
	return func() (*harness.Outcome, error) {
		f := e.fleet(name, args, 1, harness.Watch{Redis: []*harness.Redis{r}})
		f.Program = e.peersBin
		return f.Run()
	}
}

// daemonRenewals has one client that holds n locks through a daemon.
func (e *Env) daemonRenewals(scene string, n int, r *harness.Redis) error {
	if err := r.Flush(); err != nil {
		return err
	}
	d, err := e.daemon("redis://" + r.Addr)
	if err != nil {
		return err
	}
	defer e.stop(scene, d)
	var lost error
	holder, err := client.Dial(e.Ctx, d.Socket, client.Options{Name: "holder",
		OnLost: func(l client.Lost) {
			lost = fmt.Errorf("%s was lost: %v", l.Key, l.Reason)
		}})
	if err != nil {
		return err
	}
	began := time.Now()
	err = takeAll(e.Ctx, holder, n, daemonTTL)
	e.Logf("%s  a daemon has taken %d locks in %.1f s", scene, n, time.Since(began).Seconds())
	for round := 0; round < min(e.Rounds, 3) && err == nil; round++ {
		err = e.catchUp(scene, n, d, r)
	}
	err = errors.Join(err, holder.Close())
	if lost != nil { // the reader has ended, so lost does not change any more
		e.Report.Fault("%s: %v", scene, lost)
	}
	return err
}

// catchUp stops the daemon until all its locks are due, and measures how long it takes to renew
// all. Meanwhile PEXPIRE is measured with the same keys.
func (e *Env) catchUp(scene string, n int, d *Daemon, r *harness.Redis) error {
	if err := d.Pause(); err != nil {
		return err
	}
	stopped := time.Now()
	resume := func() error { return d.Resume() }
	o, err := e.renewing("renew-bare", load.RenewArgs{Addr: r.Addr, Keys: n, Batch: renewBatch,
		TTL: daemonTTL}, r)()
	if err != nil {
		return errors.Join(err, resume())
	}
	m := o.Metrics()
	perMillion(o, m)
	e.Report.Add(scene, daemonPeer, m)
	e.blame(scene, daemonPeer, o)
	time.Sleep(time.Until(stopped.Add(daemonStops)))
	before, err := r.Info()
	if err != nil {
		return errors.Join(err, resume())
	}
	cpu, began := harness.CPU(d.PID()), time.Now()
	if err := resume(); err != nil {
		return err
	}
	after, err := renewed(e.Ctx, r, before.Renewals+float64(n))
	if err != nil {
		return err
	}
	took := time.Since(began)
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(n) }
	m = harness.Metrics{"ops_s": float64(n) / took.Seconds(),
		"s_million":        took.Seconds() * 1e6 / float64(n),
		"server_cpu_us_op": us(harness.CPU(d.PID()) - cpu), "redis_cpu_us_op": us(after.CPU - before.CPU)}
	e.Report.Add(scene, daemonRow, m)
	e.Logf("%s  %-34s %10.0f ops/s", scene, daemonRow, m["ops_s"])
	return nil
}

// renewed returns when the server has carried out want PEXPIREs.
func renewed(ctx context.Context, r *harness.Redis, want float64) (harness.RedisInfo, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		in, err := r.Info()
		if err != nil || in.Renewals >= want {
			return in, err
		}
		if ctx.Err() != nil {
			return in, ctx.Err()
		}
		if time.Now().After(end) {
			return in, fmt.Errorf("%.0f renewals are missing after a minute", want-in.Renewals)
		}
	}
}
