// Command peers is a worker of the benchmarks that acquires locks with other libraries, directly at
// a store. It is a module of its own, so that the product does not depend on these libraries. The
// bench driver builds and runs it.
package main

import (
	"fmt"
	"os"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

func main() {
	harness.Main(harness.Program{Loads: map[string]func() harness.Load{
		"goredis":          load.NewPairs(openGoRedis),
		"redislock":        load.NewPairs(openRedislock),
		"redsync":          load.NewPairs(openRedsync),
		"rueidislock":      load.NewPairs(openRueidislock),
		"rueidislock-loop": load.NewPairs(openRueidislockLoop),

		"affine-redislock": load.NewAffine(openRedislock),

		"etcd-mutex":      load.NewPairs(openEtcdMutex),
		"etcd-mutex-each": load.NewPairs(openEtcdMutexEach),
		"etcd-mutex-door": load.NewPairs(openEtcdMutexDoor),
		"sql-pool":        load.NewPairs(openSQLPool),
		"postgres-pool":   load.NewPairs(openPostgresPool),

		"etcd-batches":  load.NewBatches(openEtcdBatches),
		"sql-batches":   load.NewBatches(openSQLBatches),
		"redis-batches": load.NewBatches(openRedisBatches),

		"renew-bare":   newRenewing(bare),
		"renew-driver": newRenewing(driver),
	}})
	fmt.Fprintln(os.Stderr, "peers is run by the bench driver: go run ./bench/cmd/bench")
	os.Exit(64)
}
