package scenario

import (
	"path/filepath"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// postgresPairs has 64 callers that lock through the daemon on PostgreSQL. It compares them with
// callers that insert and delete rows on the 16 connections of one pool. One server waits for its
// disk at every commit, and the other one does not. The server's CPU time is not measured, because
// each of its connections is a process.
func postgresPairs(e *Env) error {
	for _, fsync := range []string{"fsync=on", "fsync=off"} {
		if err := e.postgresPairs(fsync); err != nil {
			return err
		}
	}
	return nil
}

func (e *Env) postgresPairs(fsync string) error {
	srv, err := harness.StartPostgres(filepath.Join(e.Dir, "postgres-"+fsync), fsync)
	if err != nil {
		return err
	}
	defer srv.Stop()
	e.Report.Machine.Postgres = srv.Version
	return e.sqlPairs(sqlScene{scene: "postgres", store: "PostgreSQL", addr: srv.Addr,
		url: "postgres://postgres@" + srv.Addr + "/postgres", row: fsync, setting: fsync,
		pool: "postgres-pool", atLeast: 1})
}
