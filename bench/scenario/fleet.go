package scenario

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// A hundred daemons use one Redis. Each is a process with four callers, which pause between two
// locks. Half of a caller's keys belong to its own host, and the other half to any other host.
// Callers sleep inside the lock, so that others have to wait. All callers are in one process, which
// checks who is inside and the order of fences.

const (
	fleetScene  = "fleet"
	fleetSize   = 100
	fleetShort  = 8
	fleetEach   = 4                      // callers per host
	fleetKeys   = 2                      // keys per host
	fleetOwn    = 500                    // of a thousand acquires
	fleetInside = 10 * time.Millisecond  // time inside a lock
	fleetPause  = 400 * time.Millisecond // time between two locks of a caller
	fleetBound  = 30 * time.Second       // limit of a wait, which no wait may reach
	fleetFor    = 30 * time.Second
)

func fleets(e *Env) error {
	hosts, long := fleetSize, fleetFor
	if e.Short {
		hosts, long = fleetShort, 2*time.Second
	}
	r, err := e.redis()
	if err != nil {
		return err
	}
	defer r.Stop()
	had := r.Clients()
	var daemons []*Daemon
	defer func() {
		for _, d := range daemons {
			e.stop(fleetScene, d)
		}
	}()
	began := time.Now()
	for range hosts {
		d, err := e.daemon("redis://" + r.Addr)
		if err != nil {
			return err
		}
		daemons = append(daemons, d)
	}
	e.Logf("%s  %d daemons are there after %.1f s", fleetScene, hosts, time.Since(began).Seconds())
	name := fmt.Sprintf("%d daemons", hosts)
	several := *e
	several.Rounds = min(e.Rounds, 3)
	if err := several.interleave(fleetScene, []row{several.together(name, daemons, r, had,
		long)}); err != nil {
		return err
	}
	e.sockets = several.sockets
	rep := e.Report
	rep.AtMost(name+" on one Redis, half of what they want is others': a wait, p99 ms",
		rep.Values(fleetScene, name, "p99_ms"), 100)
	rep.AtMost("… connections a daemon", rep.Values(fleetScene, name, "conns_daemon"), 4)
	rep.Limit("… commands a grant", rep.Values(fleetScene, name, "redis_calls_op"))
	return e.givenBack(daemons[0], "bench:")
}

// together is a row of the callers of all hosts.
func (e *Env) together(name string, daemons []*Daemon, r *harness.Redis, had int,
	long time.Duration) row {
	var args load.HostsArgs
	var pids []int
	for _, d := range daemons {
		args.Hosts, pids = append(args.Hosts, d.Socket), append(pids, d.PID())
	}
	args.Keys, args.Own, args.Callers, args.Pause = fleetKeys*len(daemons), fleetOwn,
		fleetEach, fleetPause
	args.TTL, args.Wait, args.Section = redisTTL, fleetBound, fleetInside
	conns := 0
	return row{name, func() (*harness.Outcome, error) {
		e.sockets++ // each run has keys of its own, because fences on the board begin again
		args.Prefix = fmt.Sprintf("bench:fleet%d", e.sockets)
		f := e.fleet(load.Hosts, args, 1, harness.Watch{Beside: pids, Redis: []*harness.Redis{r}})
		f.Window = long
		f.Midway = func() { conns = r.Clients() - had }
		return e.onBoard(f, args.Keys, func(board string) any {
			args.Board = board
			return args
		})
	}, func(o *harness.Outcome, m harness.Metrics) {
		us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
		m["p99_ms"] = m["p99_us"] / 1000
		m["other_p50_us"], m["other_p99_us"] = us(o.Apart.Quantile(0.5)), us(o.Apart.Quantile(0.99))
		m["conns_daemon"] = float64(conns) / float64(len(daemons))
		m["redis_cores"], m["daemons_cores"] = o.RedisCPU.Seconds()/o.Window.Seconds(),
			o.ServerCPU.Seconds()/o.Window.Seconds()
		var rss int64
		for _, d := range daemons {
			rss += harness.RSS(d.PID())
		}
		m["rss_mib_daemon"] = float64(rss) / mib / float64(len(daemons))
		m["jain_hosts"] = harness.Jain(byHost(o.PerCaller, len(daemons)))
	}}
}

// byHost adds up the counts of each host's callers.
func byHost(callers []uint64, hosts int) []uint64 {
	sums := make([]uint64, hosts)
	for i, n := range callers {
		sums[i%hosts] += n
	}
	return sums
}
