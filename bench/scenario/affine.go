package scenario

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// Two hosts use the same keys. Each has a daemon on one Redis that is half a millisecond away. In
// some rows, only the host of a key acquires it. In others, the other host makes one acquire in a
// hundred. With linger, a key stays on its host while it has no holder. The scene compares this
// with the same daemons without linger, and with a library directly at the Redis. The library uses
// the same line, twice for each lock. The rows measure the waits, and separately the waits for keys
// of the other host.
//
// If the other host makes one acquire in a hundred, an acquire takes at least 0.05 store commands
// on average. The key has to move there and back, which takes about eight commands. In addition, a
// key that another host has waited for does not linger for linger_pause (see
// daemon/engine/sim/STUDY.md).
//
// There are two shapes. With many callers, the cores are busy, and the CPU time of a lock decides.
// One caller per host shows the cost of the distance. The line is a process, which uses CPU time
// that a network would not use, most of it for the rows that use the line most. So CPU time is also
// compared without the line's.
//
// The history of a key decides whether it lingers. So the keys of a row are the same in all rounds,
// and are used before the first round.

const (
	affinePast = 2   // runs of each row with linger before the first round
	affineOwn  = 990 // of a thousand acquires, if the other host uses the keys, too
	lingerFor  = "2s"
)

// affineCrews are the processes of both hosts. Each has a number of keys such that callers return
// to a key well within the linger time, and within a row's window.
var affineCrews = []affineCrew{{crew{16, 4}, 1000}, {crew{2, 1}, 100}}

type affineCrew struct {
	crew
	keys int
}

// affineWay is one way to the locks. No other row uses its keys.
type affineWay struct {
	name  string
	own   int  // of a thousand acquires
	past  bool // the history of its keys matters
	fleet harness.Fleet
	hosts []string // Addr of each
}

var (
	lingering = affineWay{name: "locksidecar, linger", own: 1000, past: true}
	mostly    = affineWay{name: "locksidecar, linger, 99 of 100", own: affineOwn, past: true}
	without   = affineWay{name: "locksidecar", own: 1000}
	bsmLock   = affineWay{name: "redislock", own: 1000}
)

func (w affineWay) row(c crew) string {
	return fmt.Sprintf("%s, %d × %d a host", w.name, c.procs/2, c.threads)
}

func affine(e *Env) error {
	const scene = "affine"
	r, err := e.redis()
	if err != nil {
		return err
	}
	defer r.Stop()
	l, err := e.line(r.Addr)
	if err != nil {
		return err
	}
	defer l.Stop()
	keeping, err := e.twins("redis://"+l.Addr, "--linger", lingerFor)
	if err != nil {
		return err
	}
	defer keeping.stop(e, scene)
	plain, err := e.twins("redis://" + l.Addr)
	if err != nil {
		return err
	}
	defer plain.stop(e, scene)
	watch := harness.Watch{Redis: []*harness.Redis{r}, Stores: []int{l.PID()}}
	ways := []affineWay{lingering.through(keeping, watch), mostly.through(keeping, watch),
		without.through(plain, watch)}
	if err := e.buildPeers(); err != nil {
		e.Report.Note("The peers could not be built and were not measured: %v", err)
	} else {
		w := bsmLock
		w.fleet, w.hosts = harness.Fleet{Load: "affine-redislock", Program: e.peersBin, Watch: watch},
			[]string{l.Addr, l.Addr}
		ways = append(ways, w)
	}
	var rows []row
	for _, c := range affineCrews {
		for _, w := range ways {
			r := e.affine(w, c)
			rows = append(rows, r)
			for range affinePast {
				if e.Short || !w.past {
					break
				}
				if _, err := r.run(); err != nil {
					return fmt.Errorf("%s: %w", r.name, err)
				}
			}
		}
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	for _, c := range affineCrews {
		e.checkAffine(scene, c.crew)
	}
	return nil
}

func (e *Env) checkAffine(scene string, c crew) {
	rep := e.Report
	about := fmt.Sprintf("host-affine keys, %d × %d a host: ", c.procs/2, c.threads)
	rate := func(w affineWay) []float64 { return rep.Ratio(scene, w.row(c), bsmLock.row(c), "ops_s") }
	rep.AtLeast(about+"with linger, pairs a second, to redislock", rate(lingering), 10, 0)
	rep.Limit(about+"with linger, 99 of 100 acquires, pairs a second, to redislock", rate(mostly))
	rep.Limit(about+"without linger, pairs a second, to redislock", rate(without))
	rep.Limit(about+"redislock, CPU a pair but for the line's, to that with linger",
		rep.Ratio(scene, bsmLock.row(c), lingering.row(c), offLine))
	rep.AtMost(about+"with linger, store commands an acquire",
		rep.Values(scene, lingering.row(c), "redis_calls_op"), 0.05)
	rep.Limit(about+"with linger, 99 of 100 acquires, store commands an acquire",
		rep.Values(scene, mostly.row(c), "redis_calls_op"))
}

// offLine is the column of the CPU time without the line's.
const offLine = "cpu_off_line_us_op"

// affine is a row of the processes of both hosts.
func (e *Env) affine(w affineWay, c affineCrew) row {
	e.sockets++
	args := load.AffineArgs{Hosts: w.hosts, Own: w.own}
	args.Keys, args.Prefix, args.Callers = c.keys, fmt.Sprintf("bench:%d", e.sockets), c.threads
	args.TTL, args.Wait, args.Backoff = redisTTL, client.Forever, time.Millisecond
	f := w.fleet
	f.Procs, f.Warm, f.Window = c.procs, e.Warm, e.Window
	if e.Short {
		f.Procs = min(f.Procs, 4)
	}
	return row{w.row(c.crew), func() (*harness.Outcome, error) {
		return e.onBoard(f, c.keys, func(board string) any {
			args.Board = board
			return args
		})
	}, func(o *harness.Outcome, m harness.Metrics) {
		us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
		m[offLine] = us(o.ClientCPU+o.ServerCPU+o.RedisCPU) / max(1, float64(o.Hist.N()))
		if o.Apart.N() > 0 {
			m["other_p50_us"], m["other_p99_us"] = us(o.Apart.Quantile(0.5)), us(o.Apart.Quantile(0.99))
		}
	}}
}

// through makes a way use two daemons.
func (w affineWay) through(t twins, watch harness.Watch) affineWay {
	watch.Server, watch.Beside = t[0].PID(), []int{t[1].PID()}
	w.fleet, w.hosts = harness.Fleet{Load: load.Affine, Watch: watch},
		[]string{t[0].Socket, t[1].Socket}
	return w
}

// twins are the daemons of two hosts.
type twins [2]*Daemon

func (e *Env) twins(upstream string, flags ...string) (t twins, err error) {
	if t[0], err = e.daemon(upstream, flags...); err != nil {
		return t, err
	}
	if t[1], err = e.daemon(upstream, flags...); err != nil {
		t[0].Stop()
	}
	return t, err
}

func (t twins) stop(e *Env, scene string) {
	for _, d := range t {
		e.stop(scene, d)
	}
}
