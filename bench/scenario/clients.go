package scenario

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// 16 processes in Python take locks on one Redis: through the daemon with its Python
// client, and with redis-py's Lock; and then as many in Java, with its Java client and
// with Redisson's RLock. Keys of their own are acquired and released; one
// key that all want is passed on, and only acquisitions after another process count.
// redis-py polls: once as it does by itself, and as fast as makes sense. Beside it is the least that Python
// can do with the daemon: bare frames on a socket, and no account of what is held.

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
	if err := e.pythons(scene, python, d, r); err != nil || e.Short {
		return err
	}
	return e.javas(scene, d, r)
}

func (e *Env) pythons(scene, python string, d *Daemon, r *harness.Redis) error {
	program := []string{python, filepath.Join(e.Root, "bench", "clients", "worker.py")}
	ours := ClientArgs{Addr: d.Socket}
	peer := ClientArgs{Addr: r.Addr, TTL: clientTTL, Sleep: 100 * time.Millisecond}
	eager := peer
	eager.Sleep = time.Millisecond
	rows := []row{
		e.speaking(program, "python/pairs", ours, d, r, "Python, own keys"),
		e.speaking(program, "bare/pairs", ours, d, r, "bare frames in Python, own keys"),
		e.speaking(program, "redis-py/pairs", peer, d, r, "redis-py, own keys"),
		e.speaking(program, "python/hot", ours, d, r, "Python, one key"),
		e.speaking(program, "bare/hot", ours, d, r, "bare frames in Python, one key"),
		e.speaking(program, "redis-py/hot", peer, d, r, "redis-py, one key"),
		e.speaking(program, "redis-py/hot", eager, d, r, "redis-py, one key, looks each ms"),
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	rep.Limit("bare frames in Python, pairs a second, to redis-py's Lock", rep.Ratio(scene, "bare frames in Python, own keys", "redis-py, own keys", "ops_s"))
	rep.AtLeast("Python, pairs a second of 16 processes, to redis-py's Lock", rep.Ratio(scene, "Python, own keys", "redis-py, own keys", "ops_s"), 2, 0)
	for _, p := range []string{"redis-py, one key", "redis-py, one key, looks each ms"} {
		rep.AtLeast("Python, hand-overs a second among 16 processes, to "+p, rep.Ratio(scene, "Python, one key", p, "handovers_s"), 20, 0)
	}
	return nil
}

// javas builds the worker first, with the client as it stands here. Its JVMs do with the
// quick compiler: 16 that optimise on a few cores measure that.
func (e *Env) javas(scene string, d *Daemon, r *harness.Redis) error {
	dir := filepath.Join(e.Root, "bench", "clients", "java")
	mvn := exec.CommandContext(e.Ctx, "mvn", "-q", "-B", "-f", dir, "package", "-DskipTests", "-Dmaven.javadoc.skip", "-Dmaven.source.skip")
	if out, err := mvn.CombinedOutput(); err != nil {
		return fmt.Errorf("build the Java worker: %w: %s", err, out)
	}
	program := []string{"java", "-XX:+UseSerialGC", "-Xmx256m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-jar",
		filepath.Join(dir, "worker", "target", "worker.jar")}
	ours, peer := ClientArgs{Addr: d.Socket}, ClientArgs{Addr: r.Addr, TTL: clientTTL}
	if err := e.interleave(scene, []row{
		e.speaking(program, "java/pairs", ours, d, r, "Java, own keys"),
		e.speaking(program, "redisson/pairs", peer, d, r, "Redisson, own keys"),
		e.speaking(program, "java/hot", ours, d, r, "Java, one key"),
		e.speaking(program, "redisson/hot", peer, d, r, "Redisson, one key"),
	}); err != nil {
		return err
	}
	rep := e.Report
	rep.AtLeast("Java, pairs a second of 16 processes, to Redisson's RLock", rep.Ratio(scene, "Java, own keys", "Redisson, own keys", "ops_s"), 1.5, 0)
	rep.AtLeast("Java, hand-overs a second among 16 processes, to Redisson's RLock", rep.Ratio(scene, "Java, one key", "Redisson, one key", "handovers_s"), 20, 0)
	return nil
}

// clientStart is what the workers may take until they have warmed up: 16 JVMs take a while.
const clientStart = 3 * time.Minute

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
		f.StartUp = clientStart
		f.Midway = func() { conns = r.Clients() }
		return f.Run()
	}, func(o *harness.Outcome, m harness.Metrics) {
		m["handovers_s"] = float64(o.HandOvers) / o.Window.Seconds()
		m["redis_conns"] = float64(conns)
	}}
}
