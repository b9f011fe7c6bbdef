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
// has to, so the row that waits is the like; a try asks etcd for less. With quiet
// releases a caller goes on to its next lock without waiting for the answer.

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
	quiet := waiting
	quiet.Quiet = true
	stores := harness.Watch{Stores: []int{srv.PID()}}
	rows := []row{
		{"locksidecar", e.pairs(d, waiting, stores), nil},
		{"locksidecar, quiet", e.pairs(d, quiet, stores), nil},
		{"locksidecar, tries", e.pairs(d, args, stores), nil},
	}
	rows = append(rows, e.peerRows(stores, load.PairsArgs{Addr: srv.Addr, Callers: pairCallers, TTL: pairTTL},
		peer{mutex, "etcd-mutex"})...)
	rows = append(rows, e.bareRows(stores, load.PairsArgs{Addr: srv.Addr, TTL: pairTTL}, peer{bareRow, "etcd-batches"})...)
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	rep.AtLeast("etcd, pairs a second, to concurrency.Mutex", rep.Ratio(scene, "locksidecar", mutex, "ops_s"), 2.5, 3.5)
	rep.AtLeast("etcd, pairs a second with quiet releases, to concurrency.Mutex", rep.Ratio(scene, "locksidecar, quiet", mutex, "ops_s"), 2.5, 3.5)
	e.limit(scene, "etcd, bare batches, to concurrency.Mutex", bareRow, mutex)
	return nil
}

// What can be had at all, whoever gathers the locks of so many callers: their keys in
// bare batches, of which two are on their way at a time, for nothing but that the key
// is not there, and without a daemon.
const (
	bareRow      = "bare batches"
	bareInFlight = 2
)

func (e *Env) bareRows(stores harness.Watch, args load.PairsArgs, peers ...peer) []row {
	args.Callers = bareInFlight
	return e.peerRows(stores, load.BatchesArgs{PairsArgs: args, Batch: pairCallers / bareInFlight}, peers...)
}

// limit says how far bare batches are from a row.
func (e *Env) limit(scene, what, bare, row string) {
	if r := e.Report.Ratio(scene, bare, row, "ops_s"); len(r) > 0 {
		e.Report.Limit(what, r)
	}
}

// pairs is a row through a daemon, with what is to be seen of its store.
func (e *Env) pairs(d *Daemon, args load.PairsArgs, stores harness.Watch) func() (*harness.Outcome, error) {
	args.Addr = d.Socket
	stores.Server = d.PID()
	return func() (*harness.Outcome, error) {
		return e.fleet(load.Sidecar, args, 1, stores).Run()
	}
}

// peer is a row of the peers' worker.
type peer struct{ row, load string }

// peerRows are the rows of peers; none when these cannot be built.
func (e *Env) peerRows(stores harness.Watch, args any, peers ...peer) (rows []row) {
	if err := e.buildPeers(); err != nil {
		e.Report.Note("The peers could not be built and were not measured: %v", err)
		return nil
	}
	for _, p := range peers {
		rows = append(rows, row{p.row, func() (*harness.Outcome, error) {
			f := e.fleet(p.load, args, 1, stores)
			f.Program = e.peersBin
			return f.Run()
		}, nil})
	}
	return rows
}
