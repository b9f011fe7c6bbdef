package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// A daemon that nothing uses should cost nothing. A daemon that is started on demand should be
// ready before a user notices.

const (
	idleFor = 10 * time.Second
	mib     = 1 << 20
)

func idle(e *Env) error {
	const scene = "idle"
	rounds := min(e.Rounds, 3)
	for round := range rounds {
		m, err := e.idleOnce(scene, "memory:")
		if err != nil {
			return err
		}
		e.Report.Add(scene, "embedded", m)
		e.Logf("%s %d/%d  first lock after %.1f ms, %.1f MiB, %.2f ms of CPU in %v", scene,
			round+1, rounds,
			m["first_lock_ms"], m["rss_mib"], m["cpu_ms"], e.idleTime())
	}
	r, err := harness.StartRedis(e.Dir)
	if err != nil {
		e.Report.Note("Idle on Redis was not measured: %v", err)
	} else {
		defer r.Stop()
		m, err := e.idleOnce(scene, "redis://"+r.Addr)
		if err != nil {
			return err
		}
		e.Report.Add(scene, "redis", m)
	}
	rep := e.Report
	rep.AtMost("start to first lock, ms", rep.Values(scene, "embedded", "first_lock_ms"), 100)
	rep.AtMost("idle daemon, MiB resident", rep.Values(scene, "embedded", "rss_mib"), 20)
	// This is the smallest measurable time: one clock tick of the kernel's accounting.
	rep.AtMost("idle daemon, ms of CPU in 10 s", rep.Values(scene, "embedded", "cpu_ms_10s"), 10)
	return nil
}

func (e *Env) idleTime() time.Duration {
	if e.Short {
		return idleFor / 5
	}
	return idleFor
}

func (e *Env) idleOnce(scene, upstream string) (harness.Metrics, error) {
	if err := e.buildDaemon(); err != nil { // the build is not part of the start
		return nil, err
	}
	ctx, cancel := context.WithTimeout(e.Ctx, time.Minute)
	defer cancel()
	began := time.Now()
	d, err := e.launch(upstream)
	if err != nil {
		return nil, err
	}
	defer e.stop(scene, d)
	var c *client.Client
	for {
		if c, err = client.Dial(ctx, d.Socket, client.Options{Name: "bench"}); err == nil {
			break
		}
		if time.Since(began) > 20*time.Second {
			return nil, fmt.Errorf("the daemon does not come up: %w\n%s", err, d.Said())
		}
		time.Sleep(200 * time.Microsecond)
	}
	g, err := c.Acquire(ctx, client.AcquireArgs{Key: "bench:first"})
	first := time.Since(began)
	if err == nil {
		_, err = c.Release(ctx, client.ReleaseArgs{Key: "bench:first", Fence: g.Fence})
	}
	c.Close()
	if err != nil {
		return nil, fmt.Errorf("first lock: %w", err)
	}
	time.Sleep(time.Second) // the rest of the start
	cpu := harness.CPU(d.PID())
	time.Sleep(e.idleTime())
	used := harness.CPU(d.PID()) - cpu
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return harness.Metrics{
		"first_lock_ms": ms(first),
		"rss_mib":       float64(harness.RSS(d.PID())) / mib,
		"cpu_ms":        ms(used),
		"cpu_ms_10s":    ms(used) * float64(idleFor) / float64(e.idleTime()),
	}, nil
}
