package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// 16 processes in Python take locks on one Redis: through the daemon with its Python
// client, and with redis-py's Lock. Keys of their own are acquired and released; one
// key that all want is passed on, and only acquisitions after another process count.
// redis-py polls: once as it does by itself, and as fast as makes sense.

const (
	clientProcs = 16
	clientTTL   = 30 * time.Second
)

// ClientArgs is what a worker of another language is told.
type ClientArgs struct {
	Addr   string        // of the daemon's socket, or of the store for peers
	Key    string        // that all want, or what their own begin with
	Shared string        // the page of harness.NewShared
	TTL    time.Duration // of peers' locks
	Sleep  time.Duration // of peers that poll, between two looks
}

func clients(e *Env) error {
	const scene = "clients"
	python := filepath.Join(e.Root, ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		return fmt.Errorf("the Python of the tests is not there: make deps (%w)", err)
	}
	r, err := harness.StartRedis(e.Dir)
	if err != nil {
		return err
	}
	defer r.Stop()
	e.Report.Machine.Redis = r.Version()
	d, err := e.daemon("redis://" + r.Addr)
	if err != nil {
		return err
	}
	defer e.stop(scene, d)
	program := []string{python, filepath.Join(e.Root, "bench", "clients", "worker.py")}
	ours := ClientArgs{Addr: d.Socket}
	peer := ClientArgs{Addr: r.Addr, TTL: clientTTL, Sleep: 100 * time.Millisecond}
	eager := peer
	eager.Sleep = time.Millisecond
	rows := []row{
		e.speaking(program, "python/pairs", ours, d, r, "Python, own keys"),
		e.speaking(program, "redis-py/pairs", peer, d, r, "redis-py, own keys"),
		e.speaking(program, "python/hot", ours, d, r, "Python, one key"),
		e.speaking(program, "redis-py/hot", peer, d, r, "redis-py, one key"),
		e.speaking(program, "redis-py/hot", eager, d, r, "redis-py, one key, looks each ms"),
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	rep.AtLeast("Python, pairs a second of 16 processes, to redis-py's Lock", rep.Ratio(scene, "Python, own keys", "redis-py, own keys", "ops_s"), 2, 0)
	for _, p := range []string{"redis-py, one key", "redis-py, one key, looks each ms"} {
		rep.AtLeast("Python, hand-overs a second among 16 processes, to "+p, rep.Ratio(scene, "Python, one key", p, "handovers_s"), 20, 0)
	}
	return nil
}

// speaking is a row of workers in another language, with the connections that the
// store has had meanwhile.
func (e *Env) speaking(program []string, load string, args ClientArgs, d *Daemon, r *harness.Redis, name string) row {
	conns := 0
	return row{name, func() (*harness.Outcome, error) {
		shared, err := harness.NewShared(e.Dir)
		if err != nil {
			return nil, err
		}
		defer os.Remove(shared)
		e.sockets++ // keys of its own: fences on the page start afresh
		args.Shared, args.Key = shared, fmt.Sprintf("bench:%d", e.sockets)
		f := e.fleet(load, args, clientProcs, harness.Watch{Server: d.PID(), Redis: []*harness.Redis{r}})
		f.Program, f.ProgramArgs = program[0], program[1:]
		f.Midway = func() { conns = r.Clients() }
		return f.Run()
	}, func(o *harness.Outcome, m harness.Metrics) {
		m["handovers_s"] = float64(o.HandOvers) / o.Window.Seconds()
		m["redis_conns"] = float64(conns)
	}}
}
