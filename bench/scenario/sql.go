package scenario

import (
	"fmt"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// sqlScene compares pairs through the daemon on one SQL server with pairs through rows that each
// caller inserts and deletes on the 16 connections of one pool.
type sqlScene struct {
	scene, store string // names of the scene and, in limits, of the store
	addr, url    string // of the server, and of the store
	row, setting string // the server's setting that is tried, in the names of rows and of limits
	stores       harness.Watch
	pool         string  // the load of the pool
	atLeast      float64 // the required ratio to the pool's pairs per second
	bare         string  // the load of bare batches; "" for none
}

func (e *Env) sqlPairs(s sqlScene) error {
	d, err := e.daemon(s.url)
	if err != nil {
		return err
	}
	defer e.stop(s.scene, d)
	args := load.PairsArgs{Addr: s.addr, Callers: pairCallers, TTL: pairTTL}
	name := func(row string) string { return row + ", " + s.row }
	quiet := args
	quiet.Quiet = true
	rows := []row{{name("locksidecar"), e.pairs(d, args, s.stores), nil},
		{name("locksidecar, quiet"), e.pairs(d, quiet, s.stores), nil}}
	rows = append(rows, e.peerRows(s.stores, args, peer{name("pool"), s.pool})...)
	if s.bare != "" {
		rows = append(rows, e.bareRows(s.stores, args, peer{name(bareRow), s.bare})...)
	}
	if err := e.interleave(s.scene, rows); err != nil {
		return err
	}
	for _, of := range []struct{ row, how string }{
		{"locksidecar", ""}, {"locksidecar, quiet", " with quiet releases"},
	} {
		limit := fmt.Sprintf("%s, pairs a second%s, to one pool's rows, %s", s.store, of.how, s.setting)
		e.Report.AtLeast(limit, e.Report.Ratio(s.scene, name(of.row), name("pool"), "ops_s"), s.atLeast,
			0)
	}
	if s.bare != "" {
		e.limit(s.scene, fmt.Sprintf("%s, bare batches, to one pool's rows, %s", s.store, s.setting),
			name(bareRow), name("pool"))
	}
	return nil
}
