package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// One process takes over from another, again and again, while many sessions hold locks and make
// calls. The scene measures what they notice. A takeover lasts from the start of the new process
// until the end of the old one, and until each session has an answer from the new one.

const (
	takeoverScene    = "takeover"
	takeoverTimes    = 10
	takeoverSessions = 500
	takeoverHolds    = 200 // per session
	takeoverLimit    = 500 // ms
	takeoverBreath   = 20 * time.Millisecond
)

func takeovers(e *Env) error {
	stores := []string{"embedded", "redis"}
	for round := range min(e.Rounds, 3) {
		for _, store := range stores {
			m, err := e.takeoversOn(store)
			if err != nil {
				return fmt.Errorf("%s: %w", store, err)
			}
			e.Report.Add(takeoverScene, store, m)
			e.Logf("%s %d  %-8s  pause p50 %.1f, p99 %.1f, max %.1f ms; otherwise p99 %.2f ms; %.0f calls/s; stood still %.0f ms, at most %.0f",
				takeoverScene, round+1, store, m["pause_p50_ms"], m["pause_p99_ms"], m["pause_max_ms"],
				m["calm_p99_ms"], m["ops_s"], m["took_ms"], m["took_max_ms"])
		}
	}
	rep := e.Report
	for _, store := range stores {
		rep.AtMost("pause of a session at a takeover, "+store+", p99 ms",
			rep.Values(takeoverScene, store, "pause_p99_ms"), takeoverLimit)
		rep.Limit("… the same calls with no takeover", rep.Values(takeoverScene, store, "calm_p99_ms"))
	}
	return nil
}

// takeoversOn runs a round on one store.
func (e *Env) takeoversOn(store string) (harness.Metrics, error) {
	upstream := "memory:"
	if store == "redis" {
		r, err := e.redis()
		if err != nil {
			return nil, err
		}
		defer r.Stop()
		upstream = "redis://" + r.Addr
	}
	pingpong, err := harness.PingPong(e.Window / 5)
	if err != nil {
		return nil, err
	}
	s, err := e.succession(upstream)
	if err != nil {
		return nil, err
	}
	defer func() { e.stop(takeoverScene, s.Daemon) }()
	times, sessions := takeoverTimes, takeoverSessions
	if e.Short {
		times, sessions = 3, 50
	}
	c, err := gather(e.Ctx, s.Socket, crowdArgs{sessions, takeoverHolds, takeoverBreath})
	if err != nil {
		return nil, err
	}
	began := time.Now()
	c.start()
	took, err := s.takenOver(e.Ctx, times, c, e.Window)
	lasted := c.stop(began)
	c.letGo()
	// A failure is no reason to omit what was measured.
	if closed := c.close(); err == nil || errors.Is(err, errFailed) {
		err = closed
	}
	m := c.metrics(lasted, took)
	m["pingpong_us"] = float64(pingpong) / float64(time.Microsecond)
	if m["errors"]+m["lost"] > 0 {
		e.Report.Fault("%s, %s: %.0f errors, %.0f lost, the last: %v", takeoverScene, store, m["errors"],
			m["lost"], c.failure())
	}
	return m, err
}

// succession is the serving daemon, and how its successors are started.
type succession struct {
	*Daemon
	program string
	args    []string
}

func (e *Env) succession(upstream string) (*succession, error) {
	socket, args, err := e.serving(upstream, []string{"--log-level", "info", "--log-format", "json"})
	if err != nil {
		return nil, err
	}
	p, err := harness.StartProcess(e.daemonBin, args...)
	if err != nil {
		return nil, err
	}
	return &succession{&Daemon{p, socket}, e.daemonBin, args}, p.AwaitSocket(socket)
}

// takenOver takes over from the daemon that many times, each time after a pause. It returns how
// long the takeovers took according to the old processes.
func (s *succession) takenOver(ctx context.Context, times int, c *crowd,
	while time.Duration) (took []time.Duration, err error) {
	for len(took) < times {
		if err := c.wait(while); err != nil {
			return took, err
		}
		err := c.during(func() error {
			t, err := s.next(ctx)
			took = append(took, t)
			return err
		})
		if err != nil {
			return took, err
		}
	}
	return took, nil
}

// next starts a successor, waits until the old process has ended, and returns how long that was
// frozen, according to its log.
func (s *succession) next(ctx context.Context) (time.Duration, error) {
	successor, err := harness.StartProcess(s.program, append(slices.Clone(s.args), "--takeover")...)
	if err != nil {
		return 0, err
	}
	select {
	case <-s.Done():
		err = s.Stop() // how it has ended
	case <-successor.Done():
		err = errors.New("it ends before the old one")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("take over: %w\n%s", err, successor.Said()), successor.Stop())
	}
	old := s.Said()
	s.Process = successor
	return frozenFor(old)
}

// frozenFor reads from a log how long the process was frozen.
func frozenFor(log string) (time.Duration, error) {
	for line := range strings.Lines(log) {
		var said struct {
			Event  string
			Frozen string `json:"frozen_for"`
		}
		if json.Unmarshal([]byte(line), &said) == nil && said.Event == "taken_over" {
			return time.ParseDuration(said.Frozen)
		}
	}
	return 0, fmt.Errorf("the old process says nothing of a takeover:\n%s", log)
}
