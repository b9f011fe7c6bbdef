package scenario

import (
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// 64 callers in one process take and give up keys that nobody else wants, each key
// once, on one Redis: through the daemon over one connection, and with the libraries
// straight at the Redis. All try (none queues), with the same TTL.

const (
	redisCallers = 64
	redisTTL     = 30 * time.Second
)

func redisPairs(e *Env) error {
	const scene = "redis"
	r, err := harness.StartRedis(e.Dir)
	if err != nil {
		return err
	}
	defer r.Stop()
	e.Report.Machine.Redis = r.Version()
	d, err := e.daemon("redis://" + r.Addr)
	if err != nil {
		return err
	}
	defer e.stop(scene, d)
	args := load.PairsArgs{Addr: r.Addr, Callers: redisCallers, TTL: redisTTL}
	stores := harness.Watch{Redis: []*harness.Redis{r}}
	waiting := args
	waiting.Wait = 10 * time.Second
	rows := []row{{"locksidecar", e.pairs(d, args, stores), nil}, {"locksidecar, waiting", e.pairs(d, waiting, stores), nil}}
	rows = append(rows, e.peerRows(stores, args, peer{"rueidislock", "rueidislock"}, peer{"redislock", "redislock"},
		peer{"goredis", "goredis"}, peer{"redsync", "redsync"})...)
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	rep.AtLeast("pairs a second, to rueidislock", rep.Ratio(scene, "locksidecar", "rueidislock", "ops_s"), 1.4, 1.6)
	rep.AtLeast("pairs a second, to redislock", rep.Ratio(scene, "locksidecar", "redislock", "ops_s"), 2.4, 3)
	rep.AtMost("Redis CPU a pair, to redislock", rep.Ratio(scene, "locksidecar", "redislock", "redis_cpu_us_op"), 0.25)
	return nil
}
