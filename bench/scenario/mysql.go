package scenario

import (
	"fmt"
	"path/filepath"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// 64 callers through the daemon on a MariaDB, and as people do it with the database
// that they have: each inserts a row and deletes it again, on the 16 connections of
// one pool. Once with a server that waits for its disk at every commit, and once with
// one that does not, where what is saved is the work and not the waiting.

func mysqlPairs(e *Env) error {
	for _, flush := range []int{1, 2} {
		if err := e.mysqlPairs(flush); err != nil {
			return err
		}
	}
	return nil
}

func (e *Env) mysqlPairs(flush int) error {
	const scene = "mysql"
	srv, err := harness.StartMariaDB(filepath.Join(e.Dir, fmt.Sprint("mariadb", flush)), fmt.Sprint("--innodb-flush-log-at-trx-commit=", flush))
	if err != nil {
		return err
	}
	defer srv.Stop()
	e.Report.Machine.Maria = srv.Version
	d, err := e.daemon("mysql://root@" + srv.Addr + "/locks")
	if err != nil {
		return err
	}
	defer e.stop(scene, d)
	args := load.PairsArgs{Addr: srv.Addr, Callers: pairCallers, TTL: pairTTL}
	stores := harness.Watch{Stores: []int{srv.PID()}}
	name := func(s string) string { return fmt.Sprintf("%s, flush=%d", s, flush) }
	quiet := args
	quiet.Quiet = true
	rows := []row{{name("locksidecar"), e.pairs(d, args, stores), nil}, {name("locksidecar, quiet"), e.pairs(d, quiet, stores), nil}}
	rows = append(rows, e.peerRows(stores, args, peer{name("pool"), "sql-pool"})...)
	rows = append(rows, e.bareRows(stores, args, peer{name(bareRow), "sql-batches"})...)
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	for _, s := range []struct{ row, how string }{{"locksidecar", ""}, {"locksidecar, quiet", " with quiet releases"}} {
		rep.AtLeast(fmt.Sprintf("MariaDB, pairs a second%s, to one pool's rows, innodb_flush_log_at_trx_commit=%d", s.how, flush),
			rep.Ratio(scene, name(s.row), name("pool"), "ops_s"), 3, 0)
	}
	e.limit(scene, fmt.Sprintf("MariaDB, bare batches, to one pool's rows, innodb_flush_log_at_trx_commit=%d", flush), name(bareRow), name("pool"))
	return nil
}
