package scenario

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// This is the part of the matrix for other languages. Programs in Python and Java acquire locks on
// one Redis through the daemon, with its clients, and with what they would use without it:
// redis-py's Lock and Redisson's RLock. Java also uses one ZooKeeper, for comparison with Curator's
// InterProcessMutex. redis-py polls: once with its default, and once as fast as makes sense.
// Another row shows the least that Python can do with the daemon: bare frames on a socket, without
// a record of holds.
//
// The targets are for 16 processes with one thread each; other shapes have half the rounds. The
// JVMs run all rows, and have warmed up before the first, because 16 JVMs that have just started
// are several times as slow.

const (
	pollDefault = 100 * time.Millisecond // the default of redis-py
	pollEager   = time.Millisecond
	bareLoad    = "bare"
	unconfirmed = "locksidecar, unconfirmed" // its releases do not wait for the store
)

// mainCrew is the crew that the checks are for.
var mainCrew = crew{16, 1}

func clients(e *Env) error {
	python := filepath.Join(e.Root, ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		return fmt.Errorf("the Python of the tests is not there: make deps (%w)", err)
	}
	r, d, stop, err := e.redisDaemon("clients")
	if err != nil {
		return err
	}
	defer stop()
	if err := e.pythons(python, d, r); err != nil || e.Short {
		return err
	}
	worker, err := e.buildJava()
	if err != nil {
		return err
	}
	if err := e.javas(worker, d, r); err != nil {
		return err
	}
	return e.curators(worker)
}

func (e *Env) pythons(python string, d *Daemon, r *harness.Redis) error {
	who := func(name, load, addr string, poll time.Duration) party {
		return party{
			name: name, load: load, program: []string{python,
				filepath.Join(e.Root, "bench", "clients", "python", "worker.py")},
			addr: addr, poll: poll, store: r.Addr, watch: harness.Watch{Server: d.PID(),
				Redis: []*harness.Redis{r}},
		}
	}
	ours, bare := who("locksidecar", "python", d.Socket, 0), who("bare frames", bareLoad, d.Socket, 0)
	loose := who(unconfirmed, "python-unconfirmed", d.Socket, 0)
	peer := who("redis-py", "redis-py", r.Addr, pollDefault)
	eager := who("redis-py, each 1 ms", "redis-py", r.Addr, pollEager)
	alone := who("redis-py 1 ms, exclusive only", "redis-py", r.Addr, pollEager)
	of := func(w workload) language { return language{"python", w} }

	unique, hot := of(langUnique(mainCrew)), of(langHot(mainCrew))
	if err := unique.run(e, ours, loose, bare, peer); err != nil {
		return err
	}
	if err := hot.run(e, ours, bare, peer, eager); err != nil {
		return err
	}
	unique.draw(e, ours, loose, bare, peer)
	hot.draw(e, ours, bare, peer, eager)
	rep := e.Report
	rep.Limit("bare frames in Python, pairs a second, to redis-py's Lock", unique.ratio(e, bare, peer))
	rep.AtLeast("Python, pairs a second of 16 processes, to redis-py's Lock",
		unique.ratio(e, ours, peer), 1.5, 0)
	rep.AtLeast("Python without confirmation, pairs a second of 16 processes, to redis-py's Lock",
		unique.ratio(e, loose, peer), 2.2, 0)
	rep.AtMost("Python, CPU time of the client for a pair of 16 processes, µs",
		rep.Values(unique.scene(), ours.name, "client_cpu_us_op"), 75)
	for _, p := range []party{peer, eager} {
		rep.AtLeast("Python, handoffs a second among 16 processes, to "+p.name,
			hot.ratio(e, ours, p), 20, 0)
	}
	if e.Short {
		return nil
	}
	single := of(langUnique(crew{1, 1}))
	if err := single.runHalf(e, ours, loose, bare, peer); err != nil {
		return err
	}
	rep.Limit("bare frames in Python, pairs a second of one caller alone, to redis-py's Lock",
		single.ratio(e, bare, peer))
	rep.Limit("bare frames in Python, CPU time for a pair of 16 processes, µs",
		rep.Values(unique.scene(), bare.name, "client_cpu_us_op"))
	rep.AtLeast("Python, pairs a second of one caller alone, to redis-py's Lock",
		single.ratio(e, ours, peer), 1.2, 0)
	rep.AtLeast("Python without confirmation, pairs a second of one caller alone, to redis-py's Lock",
		single.ratio(e, loose, peer), 1.8, 0)
	mix, reads := of(langMix(mainCrew)), of(langReads(mainCrew))
	if err := mix.run(e, ours, peer, eager); err != nil {
		return err
	}
	if err := reads.run(e, ours, alone); err != nil {
		return err
	}
	mix.draw(e, ours, peer, eager)
	reads.draw(e, ours, alone)
	for _, s := range []crew{{32, 2}, {1, 64}} {
		if err := of(langUnique(s)).runHalf(e, ours, peer); err != nil {
			return err
		}
		if err := of(langHot(s)).runHalf(e, ours, peer, eager); err != nil {
			return err
		}
	}
	return nil
}

// quickCompiler is a flag for many JVMs. Otherwise the result shows how 16 JVMs optimize their code
// on few cores.
const quickCompiler = "-XX:TieredStopAtLevel=1"

func (e *Env) javas(worker string, d *Daemon, r *harness.Redis) error {
	watch := harness.Watch{Server: d.PID(), Redis: []*harness.Redis{r}}
	// of runs workloads with this product's client and with Redisson. Each has JVMs of its own, which
	// run all its rows.
	of := func(program []string, run func(language, ...party) error, ws ...workload) error {
		ours := party{name: "locksidecar", load: "java", program: program, addr: d.Socket,
			crew: &harness.Crew{}, store: r.Addr, watch: watch}
		loose := party{name: unconfirmed, load: "java-unconfirmed", program: program, addr: d.Socket,
			crew: &harness.Crew{}, store: r.Addr, watch: watch}
		peer := party{name: "Redisson", load: "redisson", program: program, addr: r.Addr,
			crew: &harness.Crew{}, store: r.Addr, watch: watch}
		defer ours.crew.Stop()
		defer loose.crew.Stop()
		defer peer.crew.Stop()
		for _, w := range ws {
			if err := run(language{"java", w}, ours, loose, peer); err != nil {
				return err
			}
		}
		return nil
	}
	full := func(l language, parties ...party) error {
		defer l.draw(e, parties...)
		return l.run(e, parties...)
	}
	half := func(l language, parties ...party) error { return l.runHalf(e, parties...) }
	unique, hot := langUnique(mainCrew), langHot(mainCrew)
	if err := of(jvm(worker, quickCompiler), full, unique, hot, langMix(mainCrew),
		langReads(mainCrew)); err != nil {
		return err
	}
	rep, ours, peer := e.Report, party{name: "locksidecar"}, party{name: "Redisson"}
	own := language{"java", unique}
	rep.AtLeast("Java, pairs a second of 16 processes, to Redisson's RLock", own.ratio(e, ours, peer),
		4, 0)
	rep.AtLeast("Java without confirmation, pairs a second of 16 processes, to Redisson's RLock",
		own.ratio(e, party{name: unconfirmed}, peer), 5, 0)
	rep.AtMost("Java, CPU time of the client for a pair of 16 processes, µs",
		rep.Values(own.scene(), ours.name, "client_cpu_us_op"), 55)
	rep.AtLeast("Java, handoffs a second among 16 processes, to Redisson's RLock",
		language{"java", hot}.ratio(e, ours, peer), 25, 0)
	several, one := crew{8, 8}, crew{1, 64}
	if err := of(jvm(worker, quickCompiler), half, langUnique(several), langHot(several)); err != nil {
		return err
	}
	return of(jvm(worker), half, langUnique(one), langHot(one))
}

// curators runs one JVM with 16 threads on a ZooKeeper. Its daemon serves nothing else.
func (e *Env) curators(worker string) error {
	z, err := harness.StartZooKeeper(e.Dir)
	if err != nil {
		return err
	}
	defer z.Stop()
	e.Report.Note("ZooKeeper %s waits for its disk.", z.Version)
	d, err := e.daemon("zookeeper://" + z.Addr)
	if err != nil {
		return err
	}
	defer e.stop("clients on ZooKeeper", d)
	watch := harness.Watch{Server: d.PID(), Stores: []int{z.PID()}}
	ours := party{name: "locksidecar", load: "java", program: jvm(worker), addr: d.Socket,
		crew: &harness.Crew{}, store: z.Addr, watch: watch}
	peer := party{name: "Curator", load: "curator", program: jvm(worker), addr: z.Addr,
		crew: &harness.Crew{}, store: z.Addr, watch: watch}
	defer ours.crew.Stop()
	defer peer.crew.Stop()
	one := crew{1, 16}
	unique, hot := language{"zookeeper", langUnique(one)}, language{"zookeeper", langHot(one)}
	for _, l := range []language{unique, hot} {
		if err := l.run(e, ours, peer); err != nil {
			return err
		}
		l.draw(e, ours, peer)
	}
	rep := e.Report
	rep.Limit("Java on ZooKeeper, pairs a second of 16 threads, to Curator's InterProcessMutex",
		unique.ratio(e, ours, peer))
	rep.Limit("Java on ZooKeeper, handoffs a second among 16 threads, to Curator's InterProcessMutex",
		hot.ratio(e, ours, peer))
	return nil
}

// buildJava builds the worker with the present source of the client.
func (e *Env) buildJava() (worker string, err error) {
	dir := filepath.Join(e.Root, "bench", "clients", "java")
	mvn := exec.CommandContext(e.Ctx, "mvn", "-q", "-B", "-f", dir, "package", "-DskipTests",
		"-Dmaven.javadoc.skip", "-Dmaven.source.skip")
	if out, err := mvn.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the Java worker: %w: %s", err, out)
	}
	return filepath.Join(dir, "worker", "target", "worker.jar"), nil
}

// jvm returns the command that runs worker.
func jvm(worker string, flags ...string) []string {
	return append(append([]string{"java", "-XX:+UseSerialGC", "-Xmx256m", "-Xshare:auto"}, flags...),
		"-jar", worker)
}
