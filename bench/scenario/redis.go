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
	args := load.PairsArgs{Addr: d.Socket, Callers: redisCallers, TTL: redisTTL}
	ours := func(args load.PairsArgs) func() (*harness.Outcome, error) {
		return func() (*harness.Outcome, error) {
			return e.fleet(load.Sidecar, args, 1, harness.Watch{Server: d.PID(), Redis: []*harness.Redis{r}}).Run()
		}
	}
	waiting := args
	waiting.Wait = 10 * time.Second
	rows := []row{{"locksidecar", ours(args), nil}, {"locksidecar, waiting", ours(waiting), nil}}
	if err := e.buildPeers(); err != nil {
		e.Report.Note("The peers could not be built and were not measured: %v", err)
	} else {
		for _, lib := range []string{"rueidislock", "redislock", "goredis", "redsync"} {
			rows = append(rows, row{lib, func() (*harness.Outcome, error) {
				a := args
				a.Addr = r.Addr
				f := e.fleet(lib, a, 1, harness.Watch{Redis: []*harness.Redis{r}})
				f.Program = e.peersBin
				return f.Run()
			}, nil})
		}
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	rep.AtLeast("pairs a second, to rueidislock", rep.Ratio(scene, "locksidecar", "rueidislock", "ops_s"), 1.4, 1.6)
	rep.AtLeast("pairs a second, to redislock", rep.Ratio(scene, "locksidecar", "redislock", "ops_s"), 2.4, 3)
	rep.AtMost("Redis CPU a pair, to redislock", rep.Ratio(scene, "locksidecar", "redislock", "redis_cpu_us_op"), 0.25)
	return nil
}
