package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// Requests are sent at a fixed rate, whatever is answered. Half of them acquire new keys, and the
// others release them a little later. A closed loop sends fewer requests when answers are late, and
// does not show how late these would have been. Here each request's time counts from when it was
// due. Every request has to be answered once, and nothing may be left. If the required rate is too
// high, the scene tries lower ones.

const (
	openConns = 4
	openHold  = 10 * time.Millisecond
	openP99   = 10 // milliseconds
	openLong  = 2  // windows of this scene, in windows of other scenes
	openShort = 5000
)

// openRates are tried in turn, until the daemon keeps up with one. The first is the target.
var openRates = []float64{100_000, 80_000, 60_000, 40_000, 20_000}

func openLoop(e *Env) error {
	const scene = "openloop"
	r, d, stop, err := e.redisDaemon(scene)
	if err != nil {
		return err
	}
	defer stop()
	rates := openRates
	if e.Short {
		rates = []float64{openShort}
	}
	rep, borne := e.Report, 0.0
	for i, rate := range rates {
		name := fmt.Sprintf("%.0f a second", rate)
		if err := e.interleave(scene, []row{e.open(name, rate, d, r)}); err != nil {
			return err
		}
		p99 := rep.Values(scene, name, "p99_ms")
		if i == 0 {
			rep.AtMost("open loop, "+name+", p99 ms", p99, openP99)
			rep.AtLeast("open loop, "+name+", share of the due requests that were answered",
				rep.Values(scene, name, "kept_up"), 0.99, 0)
		}
		if slices.Sort(p99); p99[len(p99)/2] <= openP99 {
			borne = rate
			break
		}
	}
	rep.Limit(fmt.Sprintf("open loop, highest rate tried with a p99 of at most %d ms", openP99),
		[]float64{borne})
	return e.nothingLeft(scene, d, load.OpenPrefix)
}

func (e *Env) open(name string, rate float64, d *Daemon, r *harness.Redis) row {
	conns := 0
	return row{name, func() (*harness.Outcome, error) {
		f := e.fleet(load.Open, load.OpenArgs{Addr: d.Socket, Conns: openConns, Rate: rate,
			Hold: openHold, TTL: redisTTL, Drain: 10 * time.Second}, 1,
			harness.Watch{Server: d.PID(), Redis: []*harness.Redis{r}})
		f.Window *= openLong
		f.Midway = func() { conns = r.Clients() }
		return f.Run()
	}, func(o *harness.Outcome, m harness.Metrics) {
		m["p99_ms"] = m["p99_us"] / 1000
		m["kept_up"] = o.Rate() / rate
		m["redis_conns"] = float64(conns)
	}}
}

// nothingLeft reports a fault if the daemon or its store still has a key with the prefix.
func (e *Env) nothingLeft(scene string, d *Daemon, prefix string) error {
	ctx, cancel := context.WithTimeout(e.Ctx, time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, d.Socket, client.Options{Name: "look"})
	if err != nil {
		return err
	}
	defer c.Close()
	held, _, err := c.List(ctx, prefix, "", 1)
	if err != nil {
		return fmt.Errorf("list what is held: %w", err)
	}
	stored, _, err := c.Stored(ctx, prefix, "", 1)
	if err != nil {
		return fmt.Errorf("list what is stored: %w", err)
	}
	if len(held)+len(stored) > 0 {
		e.Report.Fault("%s: locks are left at the end: %v %v", scene, held, stored)
	}
	return nil
}
