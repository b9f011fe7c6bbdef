package scenario

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// Env is the environment of the scenes.
type Env struct {
	Ctx    context.Context
	Root   string // the source directory
	Dir    string // for sockets, programs and other temporary files
	Short  bool
	Rounds int
	Warm   time.Duration
	Window time.Duration
	Soak   time.Duration // the duration of the scene soak
	Report *harness.Report
	Logf   func(format string, a ...any)

	daemonBin, etcdBin, peersBin string
	peersErr                     error
	sockets                      int
}

// Scene is one thing to measure.
type Scene struct {
	Name, About string
	Run         func(*Env) error
}

// Scenes are the scenes that run by default, in their order.
var Scenes = []Scene{
	{"idle", "an idle daemon: memory, CPU, start to first lock", idle},
	{"local", "re-entry and busy try against a bare echo server", local},
	{"handoff", "one key passed on between processes, against serial echoes", handoff},
	{"matrix", "keys of their own, one hot key, a mix, mostly readers: one Redis, against the lock libraries", matrixOf},
	{"alone", "pairs of one caller alone on one Redis, near and half a millisecond away, against go-redis", alone},
	{"openloop", "100,000 requests a second on one Redis, whatever comes back", openLoop},
	{"affine", "two daemons on one Redis half a millisecond away, keys that stay with their host, against redislock", affine},
	{"etcd", "pairs of 64 callers through one etcd, against etcd's own mutex", etcdPairs},
	{"cluster", "pairs of 64 callers through a Redis Cluster, against one standalone Redis",
		clusterPairs},
	{"mysql", "pairs of 64 callers through one MariaDB, against rows of a connection pool",
		mysqlPairs},
	{"postgres", "pairs of 64 callers through one PostgreSQL, against rows of a connection pool",
		postgresPairs},
	{"clients", "the matrix in Python and Java on one Redis, against redis-py's Lock and Redisson, and Java on ZooKeeper, against Curator", clients},
	{"watching", "what metrics, the audit and traces cost: pairs of 64 callers on daemons that are watched and one that is not", beingWatched},
	{"renewals", "a million renewals on one Redis, against PEXPIRE", renewals},
	{"abuse", "what others notice of clients that mean no good, against nobody beside them", abuse},
	{"million", "a million locks held by one client, and given up by its end", million},
	{"takeover", "what 500 sessions with 100,000 locks notice of ten takeovers, on the embedded store and on Redis", takeovers},
	{"sizing", "what a lock, a waiter, a session, a renewal, a pair costs the daemon: for docs/operate/sizing.md", sizing},
	{"units", "what one lock, renewal, wake-up, connection costs Redis, a Redis Cluster, etcd: for bench/COSTS.md", units},
	{"crowd", "10,000 sessions on one daemon, each with a lock, that call now and then", crowded},
	{"herd", "5,000 waiters from ten hosts for one key, on Redis and on etcd", herds},
	{"fleet", "100 daemons on one Redis, with keys that other hosts want too", fleets},
}

// Long are more scenes. They take so long that they run only if they are named.
var Long = []Scene{
	{"endurance", "a million locks of 30 s on one Redis, renewed for ten minutes, and what another session notices", endurance},
	{"soak", "a little of everything for two hours: memory, descriptors and goroutines stay as they are", soak},
}

// row is one thing that is run once per round.
type row struct {
	name string
	run  func() (*harness.Outcome, error)
	more func(*harness.Outcome, harness.Metrics) // computes additional columns; may be nil
}

// interleave runs every row once per round, for all rounds.
func (e *Env) interleave(scene string, rows []row) error {
	for round := range e.Rounds {
		for _, r := range rows {
			if err := e.Ctx.Err(); err != nil {
				return err
			}
			o, err := e.measure(r.run)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			m := o.Metrics()
			if r.more != nil {
				r.more(o, m)
			}
			e.Report.Add(scene, r.name, m)
			e.Logf("%s %d/%d  %-34s %10.0f ops/s  p50 %.1f µs  p99 %.1f µs", scene, round+1, e.Rounds,
				r.name, m["ops_s"], m["p50_us"], m["p99_us"])
			e.blame(scene, r.name, o)
		}
	}
	return nil
}

// measure runs something once. In a short run, a busy machine may let a whole window pass; then
// measure repeats it until something was done.
func (e *Env) measure(run func() (*harness.Outcome, error)) (*harness.Outcome, error) {
	if !e.Short {
		return run()
	}
	return harness.UntilDone(e.Ctx, run)
}

// blame reports what must never happen.
func (e *Env) blame(scene, name string, o *harness.Outcome) {
	if o.Overlaps > 0 {
		e.Report.Fault("%s, %s: two held the key at once, %d times", scene, name, o.Overlaps)
	}
	if o.FenceFaults > 0 {
		e.Report.Fault("%s, %s: a fence did not rise, %d times", scene, name, o.FenceFaults)
	}
	if o.Errs > 0 {
		e.Report.Fault("%s, %s: %d errors, the last: %s", scene, name, o.Errs, o.LastErr)
	}
	if o.Hist.N() == 0 {
		e.Report.Fault("%s, %s: nothing was done", scene, name)
	}
}

func (e *Env) fleet(name string, args any, procs int, watch harness.Watch) harness.Fleet {
	return harness.Fleet{Load: name, Args: args, Procs: procs, Warm: e.Warm,
		Window: e.Window, Watch: watch}
}

// Daemon is a daemon under test.
type Daemon struct {
	*harness.Process
	Socket string
}

func (e *Env) socket(kind string) string {
	e.sockets++
	return filepath.Join(e.Dir, fmt.Sprintf("%s%d", kind, e.sockets), "s")
}

// buildDaemon compiles the daemon, once.
func (e *Env) buildDaemon() error {
	if e.daemonBin != "" {
		return nil
	}
	out := filepath.Join(e.Dir, "locksidecar")
	if err := buildReleased(e.Ctx, e.Root, out); err != nil {
		return err
	}
	e.daemonBin = out
	return nil
}

// buildReleased compiles the daemon in root as it is released.
func buildReleased(ctx context.Context, root, out string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(root, "cmd", "locksidecar", "build.sh"), out)
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the daemon: %w\n%s", err, b)
	}
	return nil
}

// buildEtcd compiles the etcd server, once.
func (e *Env) buildEtcd() error {
	if e.etcdBin != "" {
		return nil
	}
	out := filepath.Join(e.Dir, "etcdserver")
	if err := harness.BuildEtcd(e.Ctx, e.Root, out); err != nil {
		return err
	}
	e.etcdBin = out
	return nil
}

// etcd starts a server, whose version the report names. It builds the program first.
func (e *Env) etcd() (*harness.Etcd, error) {
	if err := e.buildEtcd(); err != nil {
		return nil, err
	}
	srv, err := harness.StartEtcd(e.etcdBin, filepath.Dir(e.socket("etcd")))
	if err == nil {
		e.Report.Machine.Etcd = srv.Version
	}
	return srv, err
}

// buildPeers compiles the other libraries' worker, once.
func (e *Env) buildPeers() error {
	if e.peersBin == "" && e.peersErr == nil {
		out := filepath.Join(e.Dir, "peers")
		if e.peersErr = harness.Build(e.Ctx, filepath.Join(e.Root, "bench", "peers"), ".",
			out); e.peersErr == nil {
			e.peersBin = out
		}
	}
	return e.peersErr
}
