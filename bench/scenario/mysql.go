package scenario

import (
	"fmt"
	"path/filepath"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// mysqlPairs has 64 callers that lock through the daemon on MariaDB. It compares them with callers
// that insert and delete rows on the 16 connections of one pool. One server waits for its disk at
// every commit. The other one does not, so there locksidecar saves work but no waiting.
func mysqlPairs(e *Env) error {
	for _, flush := range []int{1, 2} {
		if err := e.mysqlPairs(flush); err != nil {
			return err
		}
	}
	return nil
}

func (e *Env) mysqlPairs(flush int) error {
	setting := fmt.Sprint("innodb_flush_log_at_trx_commit=", flush)
	srv, err := harness.StartMariaDB(filepath.Join(e.Dir, fmt.Sprint("mariadb", flush)), "--"+setting)
	if err != nil {
		return err
	}
	defer srv.Stop()
	e.Report.Machine.Maria = srv.Version
	return e.sqlPairs(sqlScene{scene: "mysql", store: "MariaDB", addr: srv.Addr,
		url: "mysql://root@" + srv.Addr + "/locks", row: fmt.Sprintf("flush=%d", flush),
		setting: setting, stores: harness.Watch{Stores: []int{srv.PID()}},
		pool: "sql-pool", atLeast: 3, bare: "sql-batches"})
}
