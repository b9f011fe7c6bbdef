package scenario

import (
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// Many sessions on one daemon, each with a lock and with a call now and then: what each takes of
// memory and descriptors, how long a call takes among so many, and that all is given back when they
// have gone. They are in this process, with two descriptors each; the daemon has three for each.

const (
	crowdScene    = "crowd"
	crowdSessions = 10_000
	crowdShort    = 300
	crowdBreath   = 5 * time.Second
	crowdFor      = 30 * time.Second
	crowdP99      = 10  // ms
	crowdFiles    = 3   // of a session
	crowdSpare    = 200 // descriptors for all else
)

func crowded(e *Env) error {
	sessions := crowdSessions
	if e.Short {
		sessions = crowdShort
	}
	files, err := harness.DescriptorLimit(crowdFiles*sessions + crowdSpare)
	if err != nil {
		return err
	}
	if may := (files - crowdSpare) / crowdFiles; may < sessions {
		e.Report.Note("%s: this machine lets a process have %d descriptors at the most, so %d sessions came and not %d.", crowdScene, files, may, sessions)
		sessions = may
	}
	for round := range min(e.Rounds, 3) {
		for _, store := range []string{"embedded", "redis"} {
			m, err := e.crowdOn(store, sessions)
			if err != nil {
				return fmt.Errorf("%s: %w", store, err)
			}
			e.Report.Add(crowdScene, store, m)
			e.Logf("%s %d  %-8s  %d sessions, %.0f B and %.2f files each; %.0f calls/s, p50 %.2f, p99 %.2f ms; gone in %.2f s", crowdScene, round+1, store,
				sessions, m["rss_b_session"], m["files_session"], m["ops_s"], m["p50_us"]/1000, m["p99_us"]/1000, m["gone_s"])
		}
	}
	rep := e.Report
	for _, store := range []string{"embedded", "redis"} {
		rep.AtLeast("sessions with a lock each, "+store, rep.Values(crowdScene, store, "sessions"), float64(crowdSessions), 0)
		rep.AtMost("… a call meanwhile, p99 ms", rep.Values(crowdScene, store, "p99_ms"), crowdP99)
	}
	return nil
}

func (e *Env) crowdOn(store string, sessions int) (m harness.Metrics, err error) {
	var d *Daemon
	if store == "redis" {
		var stop func()
		if _, d, stop, err = e.redisDaemon(crowdScene); err != nil {
			return nil, err
		}
		defer stop()
	} else {
		if d, err = e.daemon("memory:"); err != nil {
			return nil, err
		}
		defer e.stop(crowdScene, d)
	}
	breath, long := crowdBreath, crowdFor
	if e.Short {
		breath, long = e.Window/2, 2*e.Window
	}
	empty, files := harness.RSS(d.PID()), harness.Descriptors(d.PID())
	began := time.Now()
	c, err := gather(e.Ctx, d.Socket, crowdArgs{crowdScene, sessions, 1, breath})
	if err != nil {
		return nil, err
	}
	came := time.Since(began)
	began, cpu := time.Now(), harness.CPU(d.PID())
	c.start()
	err = c.wait(long)
	used := harness.CPU(d.PID()) - cpu
	had, open := harness.RSS(d.PID()), harness.Descriptors(d.PID())
	lasted := c.stop(began)
	m = c.metrics(lasted, nil)
	left := time.Now()
	if err = errors.Join(err, c.failure(), c.close()); err != nil {
		return nil, err
	}
	if err := e.givenBack(d, "bench:"); err != nil {
		return nil, err
	}
	return harness.Metrics{
		"sessions": float64(sessions), "ops_s": m["ops_s"], "p50_us": 1000 * m["calm_p50_ms"], "p99_us": 1000 * m["calm_p99_ms"],
		"p99_ms": m["calm_p99_ms"], "max_us": 1000 * m["calm_max_ms"], "errors": m["errors"], "lost": m["lost"],
		"rss_b_session": float64(had-empty) / float64(sessions), "files_session": float64(open-files) / float64(sessions),
		"came_s": came.Seconds(), "gone_s": time.Since(left).Seconds(), "daemon_cores": used.Seconds() / lasted.Seconds(),
		"files_after": float64(harness.Descriptors(d.PID()) - files),
	}, nil
}
