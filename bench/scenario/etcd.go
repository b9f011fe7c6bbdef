package scenario

import (
	"fmt"
	"math"
	"os"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// 64 callers in one process acquire and release keys that nothing else uses, on one etcd that waits
// for its disk. They use the daemon over one connection, and etcd's own concurrency.Mutex with one
// session for all callers. That mutex waits if it has to, so the row whose acquires may wait is
// comparable. A try needs less of etcd. With quiet releases, a caller continues with its next lock
// without waiting for the answer.
//
// In the second part, all callers use one key. The mutex then needs a session for each caller,
// because callers that share a session do not exclude each other. Another row shows what a program
// can do about that by itself: one session, with a door that admits one caller at a time.

const (
	pairCallers = 64
	pairTTL     = time.Minute
	pairWait    = 10 * time.Second
)

func etcdPairs(e *Env) error {
	const scene, mutex = "etcd", "concurrency.Mutex"
	e.Logf("%s: building the server, which takes minutes the first time", scene)
	srv, err := e.etcd()
	if err != nil {
		return err
	}
	defer srv.Stop()
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
	rows = append(rows, e.peerRows(stores, load.PairsArgs{Addr: srv.Addr,
		Callers: pairCallers, TTL: pairTTL},
		peer{mutex, "etcd-mutex"})...)
	rows = append(rows, e.bareRows(stores, load.PairsArgs{Addr: srv.Addr, TTL: pairTTL},
		peer{bareRow, "etcd-batches"})...)
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	rep.AtLeast("etcd, pairs a second, to concurrency.Mutex",
		rep.Ratio(scene, "locksidecar", mutex, "ops_s"), 2.5, 3.5)
	rep.AtLeast("etcd, pairs a second with quiet releases, to concurrency.Mutex",
		rep.Ratio(scene, "locksidecar, quiet", mutex, "ops_s"), 2.5, 3.5)
	e.limit(scene, "etcd, bare batches, to concurrency.Mutex", bareRow, mutex)
	return e.etcdHot(srv.Addr, d, stores)
}

func (e *Env) etcdHot(addr string, d *Daemon, stores harness.Watch) error {
	const scene, each, door = "etcd, one key", "concurrency.Mutex, a session each",
		"concurrency.Mutex, one session behind a door"
	ours := stores
	ours.Server = d.PID()
	rows := []row{e.hot(oursRow, harness.Fleet{Load: load.Sidecar, Watch: ours}, d.Socket)}
	if e.buildPeers() == nil { // the failure has been reported already
		for _, p := range []peer{{each, "etcd-mutex-each"}, {door, "etcd-mutex-door"}} {
			rows = append(rows, e.hot(p.row, harness.Fleet{Load: p.load, Program: e.peersBin, Watch: stores},
				addr))
		}
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	best := rep.Best(scene, []string{each, door}, "handoffs_s", math.Max)
	rep.AtLeast("etcd, one key, handoffs a second, to the better concurrency.Mutex",
		harness.Quotients(rep.Values(scene, oursRow, "handoffs_s"), best), 15, 0)
	return nil
}

// hot is a row of pairCallers callers in one process that use the same key.
func (e *Env) hot(name string, f harness.Fleet, addr string) row {
	f.Procs, f.Warm, f.Window = 1, e.Warm, 2*e.Window // waits are long
	args := load.WorkArgs{PairsArgs: load.PairsArgs{Addr: addr, Callers: pairCallers, TTL: pairTTL,
		Wait: client.Forever}, Keys: 1}
	return row{name, func() (*harness.Outcome, error) {
		e.sockets++ // each run has a key of its own, because fences on the board begin again
		args.Prefix = fmt.Sprintf("bench:%d", e.sockets)
		return e.onBoard(f, args.Keys, func(board string) any {
			args.Board = board
			return args
		})
	}, func(o *harness.Outcome, m harness.Metrics) {
		m["handoffs_s"] = float64(o.Handoffs) / o.Window.Seconds()
	}}
}

// onBoard runs a fleet with a new board for that many keys. args returns the fleet's arguments for
// a board.
func (e *Env) onBoard(f harness.Fleet, keys int,
	args func(board string) any) (*harness.Outcome, error) {
	board, err := load.NewBoard(e.Dir, keys)
	if err != nil {
		return nil, err
	}
	defer os.Remove(board)
	f.Args = args(board)
	return f.Run()
}

// This part shows what is possible at all for a service that batches the locks of so many callers.
// The keys are in bare batches, of which two are in flight at a time. Each batch only checks that
// the keys do not exist, and there is no daemon.
const (
	bareRow      = "bare batches"
	bareInFlight = 2
)

func (e *Env) bareRows(stores harness.Watch, args load.PairsArgs, peers ...peer) []row {
	args.Callers = bareInFlight
	return e.peerRows(stores, load.BatchesArgs{PairsArgs: args, Batch: pairCallers / bareInFlight},
		peers...)
}

// limit shows the ratio of a row of bare batches to another row.
func (e *Env) limit(scene, what, bare, row string) {
	if r := e.Report.Ratio(scene, bare, row, "ops_s"); len(r) > 0 {
		e.Report.Limit(what, r)
	}
}

// pairs is a row through a daemon, with observations of its store.
func (e *Env) pairs(d *Daemon, args load.PairsArgs,
	stores harness.Watch) func() (*harness.Outcome, error) {
	args.Addr = d.Socket
	stores.Server = d.PID()
	return func() (*harness.Outcome, error) {
		return e.fleet(load.Sidecar, args, 1, stores).Run()
	}
}

// peer is a row of the worker with other libraries.
type peer struct{ row, load string }

// peerRows returns the rows of peers. It returns none if the peers cannot be built.
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
