package scenario

import (
	"path/filepath"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// 64 callers in one process take and give up keys that nobody else wants, on one
// etcd that waits for its disk: through the daemon over one connection, and with
// etcd's own concurrency.Mutex, one session for all callers. That one waits when it
// has to, so the row that waits is the like; a try asks etcd for less.

const (
	pairCallers = 64
	pairTTL     = time.Minute
	pairWait    = 10 * time.Second
)

func etcdPairs(e *Env) error {
	const scene, mutex = "etcd", "concurrency.Mutex"
	bin := filepath.Join(e.Dir, "etcdserver")
	e.Logf("%s: building the server, which takes minutes the first time", scene)
	if err := harness.BuildEtcd(e.Ctx, e.Root, bin); err != nil {
		return err
	}
	srv, err := harness.StartEtcd(bin, e.Dir)
	if err != nil {
		return err
	}
	defer srv.Stop()
	e.Report.Machine.Etcd = srv.Version
	d, err := e.daemon("etcd://" + srv.Addr)
	if err != nil {
		return err
	}
	defer e.stop(scene, d)
	args := load.PairsArgs{Addr: d.Socket, Callers: pairCallers, TTL: pairTTL}
	waiting := args
	waiting.Wait = pairWait
	stores := []int{srv.PID()}
	rows := []row{
		{"locksidecar", e.pairs(d, waiting, stores), nil},
		{"locksidecar, tries", e.pairs(d, args, stores), nil},
	}
	rows = append(rows, e.peerRows(stores, load.PairsArgs{Addr: srv.Addr, Callers: pairCallers, TTL: pairTTL},
		peer{mutex, "etcd-mutex"})...)
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	rep.AtLeast("etcd, pairs a second, to concurrency.Mutex", rep.Ratio(scene, "locksidecar", mutex, "ops_s"), 2.5, 3.5)
	return nil
}

// pairs is a row through a daemon, with the CPU of the store's processes.
func (e *Env) pairs(d *Daemon, args load.PairsArgs, stores []int) func() (*harness.Outcome, error) {
	args.Addr = d.Socket
	return func() (*harness.Outcome, error) {
		return e.fleet(load.Sidecar, args, 1, harness.Watch{Server: d.PID(), Stores: stores}).Run()
	}
}

// peer is a row of the peers' worker.
type peer struct{ row, load string }

// peerRows are the rows of peers; none when these cannot be built.
func (e *Env) peerRows(stores []int, args any, peers ...peer) (rows []row) {
	if err := e.buildPeers(); err != nil {
		e.Report.Note("The peers could not be built and were not measured: %v", err)
		return nil
	}
	for _, p := range peers {
		rows = append(rows, row{p.row, func() (*harness.Outcome, error) {
			f := e.fleet(p.load, args, 1, harness.Watch{Stores: stores})
			f.Program = e.peersBin
			return f.Run()
		}, nil})
	}
	return rows
}
