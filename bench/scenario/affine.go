package scenario

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// Two hosts, a daemon each, on one Redis that is half a millisecond away, want the
// same keys, and each key is wanted by its own host always; or by the other one time in a hundred.
// With linger a key stays with its host while nobody holds it. Beside it are the same daemons
// without linger, and a library straight at the Redis over the same line, which it has to go along
// twice for each lock. What is timed is the wait, and once more by itself that for keys of the
// other host.
//
// One acquire in a hundred by the other host cannot cost less than 0.05 store commands an
// acquire, whatever a host does, since the key has to go there and back: some eight. And a
// key that was wanted is not kept for linger_pause (daemon/engine/sim/STUDY.md says what of that).
//
// There are two shapes. Where many callers keep the cores busy, what a lock costs in CPU
// decides; one caller a host shows what the way costs. The line is a process and takes
// from the cores what a network would not, most of it for who goes along it most: so CPU
// is compared without it, too.
//
// A key's own past says whether it is kept: a row's keys are the same in all rounds, and
// have one before the first.

const (
	affinePast = 2   // runs of each row with linger before the first round
	affineOwn  = 990 // of a thousand acquires, where the other host wants keys too
	lingerFor  = "2s"
)

// affineCrews are both hosts' processes, with as many keys as they come back to well within a
// linger, and a row's window is long for.
var affineCrews = []affineCrew{{crew{16, 4}, 1000}, {crew{2, 1}, 100}}

type affineCrew struct {
	crew
	keys int
}

// affineWay is one way to the locks. Its keys are its own.
type affineWay struct {
	name  string
	own   int  // of a thousand acquires
	past  bool // it makes a difference
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

// offLine is the column of CPU of all but the line.
const offLine = "cpu_off_line_us_op"

// affine is a row of both hosts' processes.
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

// through has a way go through two daemons.
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
