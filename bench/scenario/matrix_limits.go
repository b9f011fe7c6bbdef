package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// relay has the same clients at a relay without lock semantics. It shows what any daemon that
// batches could do. Each run has a relay of its own, because a relay does not recover from faults.
func (m *matrix) relay(w workload) []row {
	if w.work.Keys > 0 {
		w.work.Wait = client.Forever
	}
	return []row{m.row(relayRow, w, harness.Fleet{Load: load.Sidecar},
		func(f *harness.Fleet, args *load.WorkArgs) (func(), error) {
			p, socket, err := m.startRelay(m.redis.Addr)
			if err != nil {
				return nil, err
			}
			args.Addr, f.Watch.Server = socket, p.PID()
			return func() { p.Stop() }, nil
		})}
}

// startRelay starts a relay for the Redis at addr.
func (e *Env) startRelay(addr string) (*harness.Process, string, error) {
	socket := e.socket(load.Relay)
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		return nil, "", err
	}
	if err := os.WriteFile(load.RelayUpstream(socket), []byte(addr), 0o600); err != nil {
		return nil, "", err
	}
	p, err := harness.StartServer(load.Relay, socket)
	return p, socket, err
}

// depthKeys is the number of keys per script call, in the rows of depth.
const depthKeys = 32

func depthOf(keys int) string {
	if keys == 1 {
		return "redis-benchmark"
	}
	return fmt.Sprintf("redis-benchmark, %d keys a call", keys)
}

// depth measures the least cost of a pair in Redis, by redis-benchmark with full pipelines on a
// Redis of its own. It sets keys that do not exist, and deletes as many existing ones after a
// comparison of their values. It does so with one key per call, and with 32.
func (m *matrix) depth(workload) (rows []row) {
	if _, err := exec.LookPath("redis-benchmark"); err != nil {
		m.Report.Note("redis-benchmark is not here (package redis-tools): Redis at depth was not measured.")
		return nil
	}
	for _, keys := range []int{1, depthKeys} {
		rows = append(rows, row{depthOf(keys), func() (*harness.Outcome, error) {
			return m.atDepth(keys)
		},
			func(_ *harness.Outcome, c harness.Metrics) { // this row has no times of pairs, and no window
				maps.DeleteFunc(c, func(name string, _ float64) bool {
					return !slices.Contains(depthColumns, name)
				})
			}})
	}
	return rows
}

var depthColumns = []string{"ops_s", "redis_cpu_us_op", "redis_calls_op",
	"client_cpu_us_op", "errors"}

func (m *matrix) atDepth(keys int) (*harness.Outcome, error) {
	stock, pairs := 1_000_000, 128_000
	if m.Short {
		stock, pairs = stock/10, pairs/10
	}
	r, err := harness.StartRedis(m.Dir)
	if err != nil {
		return nil, err
	}
	defer r.Stop()
	c := redis.NewClient(&redis.Options{Addr: r.Addr, ReadTimeout: time.Minute})
	defer c.Close()
	o := &harness.Outcome{}
	took := time.Duration(0)
	take, drop := load.TakeKeys.Load(m.Ctx, c), load.DropKeys.Load(m.Ctx, c)
	fill := c.Eval(m.Ctx, `for i = 0, ARGV[1] - 1 do redis.call("SET", string.format("key:%012d", i), "v") end`, nil, stock)
	if err := errors.Join(take.Err(), drop.Err(), notNil(fill.Err())); err != nil {
		return nil, fmt.Errorf("prepare Redis at depth: %w", err)
	}
	takes := benchmark{keys: keys, of: 2_000_000_000, script: take.Val()}
	if keys == 1 {
		takes.script = ""
	}
	for _, b := range []benchmark{takes, {keys: keys, of: stock, script: drop.Val()}} {
		before, err := r.Info()
		if err != nil {
			return nil, err
		}
		t, cpu, err := b.run(m.Ctx, r.Addr, pairs)
		if err != nil {
			return nil, err
		}
		after, err := r.Info()
		if err != nil {
			return nil, err
		}
		took, o.ClientCPU = took+t, o.ClientCPU+cpu
		o.RedisCPU += after.CPU - before.CPU
		o.RedisCalls += after.Calls - before.Calls
	}
	// A few keys are drawn twice, and there is nothing to delete the second time.
	if left, err := c.DBSize(m.Ctx).Result(); err != nil || int(left) > stock+pairs/5 {
		return nil, fmt.Errorf("of %d keys and %d pairs, %d keys are left (%v)", stock, pairs, left, err)
	}
	o.Window = took
	for range pairs {
		o.Hist.Add(took / time.Duration(pairs))
	}
	return o, nil
}

func notNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// benchmark is a run of redis-benchmark: SET of new keys, or a script, with randomly drawn keys.
type benchmark struct {
	keys, of int
	script   string // sha1 of the script; "" for SET
}

// run blocks until n keys have been requested. It returns the time that this took, and the CPU time
// of redis-benchmark itself.
func (b benchmark) run(ctx context.Context, addr string, n int) (took,
	cpu time.Duration, err error) {
	const key = "key:__rand_int__"
	host, port, _ := net.SplitHostPort(addr)
	calls, depth := n/b.keys, max(1, 128/b.keys)
	args := []string{"-h", host, "-p", port, "--csv", "-c", "2", "-P", strconv.Itoa(depth), "-n",
		strconv.Itoa(calls), "-r", strconv.Itoa(b.of)}
	if b.script == "" {
		args = append(args, "SET", key, "v", "NX", "PX", "30000")
	} else {
		args = append(args, "EVALSHA", b.script, strconv.Itoa(b.keys))
		args = append(append(args, slices.Repeat([]string{key}, b.keys)...), "v")
	}
	cmd := exec.CommandContext(ctx, "redis-benchmark", args...)
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("run redis-benchmark: %w", err)
	}
	// The output is "test","rps",... and one row. The name of the test includes the arguments, whose
	// quotes are not escaped.
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	_, fields, _ := strings.Cut(lines[len(lines)-1], `","`)
	rate, err := strconv.ParseFloat(strings.Split(fields, `"`)[0], 64)
	if err != nil || rate == 0 {
		return 0, 0, fmt.Errorf("redis-benchmark said %q", out)
	}
	return time.Duration(float64(calls) / rate * float64(time.Second)),
		cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
