package scenario

import (
	"fmt"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// The same callers use a daemon on a Redis Cluster of three nodes, and one on a standalone Redis,
// all on this machine. A script call is for one slot. If keys are scattered over the slots, each
// needs a call, and a batch saves only round trips and system calls. Keys that share a hash tag
// share a slot, so with few tags a call has many keys again. With one tag, all keys are on one
// node.

const (
	clusterNodes = 3
	clusterTags  = 16
	bareTags     = 5000 // each tag has a fence counter; so many are like scattered keys
)

func clusterPairs(e *Env) error {
	const scene = "cluster"
	one, err := e.redis()
	if err != nil {
		return err
	}
	defer one.Stop()
	nodes, err := harness.StartRedisCluster(e.Dir, clusterNodes)
	if err != nil {
		return err
	}
	defer nodes.Stop()
	alone, err := e.daemon("redis://" + one.Addr)
	if err != nil {
		return err
	}
	defer e.stop(scene, alone)
	many, err := e.daemon(nodes.URL())
	if err != nil {
		return err
	}
	defer e.stop(scene, many)
	shapes := []struct {
		name   string
		tags   int
		target float64
	}{{"scattered", 0, 0.5}, {fmt.Sprintf("%d hash tags", clusterTags), clusterTags, 0.75},
		{"1 hash tag", 1, 0.75}}
	var rows []row
	for _, s := range shapes {
		for _, side := range []struct {
			name  string
			d     *Daemon
			redis []*harness.Redis
		}{{"standalone", alone, []*harness.Redis{one}}, {"cluster", many, nodes}} {
			args := load.PairsArgs{Callers: pairCallers, TTL: pairTTL, Tags: s.tags}
			rows = append(rows, row{side.name + ", " + s.name,
				e.pairs(side.d, args, harness.Watch{Redis: side.redis}), nil})
		}
	}
	rows = append(rows, e.bareRows(harness.Watch{Redis: nodes},
		load.PairsArgs{Addr: nodes[0].Addr, TTL: pairTTL, Tags: bareTags},
		peer{bareRow, "redis-batches"})...)
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	for _, s := range shapes {
		e.Report.AtLeast(fmt.Sprintf("Redis Cluster of %d nodes, %s, pairs a second, to standalone",
			clusterNodes, s.name),
			e.Report.Ratio(scene, "cluster, "+s.name, "standalone, "+s.name, "ops_s"), s.target, 0)
	}
	e.limit(scene, fmt.Sprintf("Redis Cluster of %d nodes, scattered, bare batches, to standalone",
		clusterNodes), bareRow, "standalone, scattered")
	return nil
}
