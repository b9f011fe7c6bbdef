package scenario

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// This scene compares the daemon with the libraries that people choose today, all on one Redis. Its
// workloads are typical of applications. They have two shapes: one process with 64 callers, and 32
// processes with two callers each. A process has one client and one connection to the daemon. The
// libraries have their usual connection pools.
//
// If each caller has keys of its own, it uses tries: no caller queues, and the rows measure pairs.
// If callers share keys, all of them wait, and the rows measure the waits. A library that polls
// does so with its default, and as often as people tune it to. The best result is selected round by
// round, separately for rates and for waits, although no single library may reach both. Waits that
// the end of the window cuts off do not count, which favors the libraries.
//
// Each workload is a scene of its own in the report.

const redisTTL = 30 * time.Second

// workload says which callers use which keys.
type workload struct {
	name, about string
	crew        crew
	work        load.WorkArgs
	libraries   []library
	others      []func(*matrix, workload) []row // rows that show limits
}

func (w workload) scene() string { return fmt.Sprintf("%s %v", w.name, w.crew) }

// rate returns the column that says how much was done.
func (w workload) rate() string {
	if w.work.Keys == 1 {
		return "handoffs_s"
	}
	return "ops_s"
}

// done returns what rate counts. On one key, that is acquires by another caller than the last
// holder.
func (w workload) done() string {
	if w.work.Keys == 1 {
		return "handoffs"
	}
	return "pairs"
}

// library is a peer, and how it is used.
type library struct {
	row, load string
	backoff   time.Duration
}

var (
	// trying has each library with its defaults.
	trying = []library{{"rueidislock", "rueidislock", 0}, {"redislock", "redislock", 0},
		{"go-redis", "goredis", 0}, {"redsync", "redsync", 0}}
	// waiting has each library with the settings that perform best.
	waiting = []library{
		{"rueidislock", "rueidislock", 0}, {"rueidislock, hears itself", "rueidislock-loop", 0},
		{"redislock, each 1 ms", "redislock", time.Millisecond},
		{"redislock, each 10 ms", "redislock", 10 * time.Millisecond},
		{"redsync", "redsync", 0}, {"redsync, each 10 ms", "redsync", 10 * time.Millisecond},
		{"go-redis, each 10 ms", "goredis", 10 * time.Millisecond},
	}
)

var (
	oneProcess    = crew{1, 64}
	manyProcesses = crew{32, 2}
)

func workloads() []workload {
	bare := []func(*matrix, workload) []row{(*matrix).relay}
	hot := load.WorkArgs{Keys: 1}
	busy := load.WorkArgs{Keys: 1, Section: time.Millisecond}
	mix := load.WorkArgs{Keys: 1000, Skew: true}
	reads := load.WorkArgs{Keys: 100, Readers: 0.95}
	reading := load.WorkArgs{Keys: 100, Readers: 0.95, Section: time.Millisecond}
	return []workload{
		{"unique", "Keys of their own", oneProcess, load.WorkArgs{}, trying,
			append(bare, (*matrix).queueing, (*matrix).depth)},
		{"unique", "Keys of their own", manyProcesses, load.WorkArgs{}, trying, bare},
		{"hot", "One key that all want", oneProcess, hot, waiting, bare},
		{"hot", "One key that all want", manyProcesses, hot, waiting, bare},
		{"hot 1ms", "One key that all want, 1 ms inside", manyProcesses, busy, waiting, bare},
		{"mix", "1000 keys, four of five acquires on a fifth of them", manyProcesses, mix, waiting, bare},
		{"reads", "100 keys, 95 % of acquires shared (libraries: exclusive)", manyProcesses,
			reads, waiting,
			[]func(*matrix, workload) []row{(*matrix).exclusiveOnly}},
		{"reads 1ms", "100 keys, 95 % of acquires shared (libraries: exclusive), 1 ms inside",
			manyProcesses, reading, waiting,
			[]func(*matrix, workload) []row{(*matrix).exclusiveOnly}},
	}
}

// matrix has the servers of the scene.
type matrix struct {
	*Env
	redis *harness.Redis
	d     *Daemon
}

func matrixOf(e *Env) error {
	r, d, stop, err := e.redisDaemon("matrix")
	if err != nil {
		return err
	}
	defer stop()
	if err := e.buildPeers(); err != nil {
		e.Report.Note("The peers could not be built and were not measured: %v", err)
	}
	m := &matrix{e, r, d}
	for _, w := range workloads() {
		if e.Short {
			w.crew.procs = min(w.crew.procs, 2)
		}
		if err := e.interleave(w.scene(), m.rows(w)); err != nil {
			return err
		}
		m.check(w)
		e.Report.Draw(m.plot(w))
	}
	return nil
}

// The names of rows that are not libraries.
const (
	oursRow      = "locksidecar"
	queueingRow  = "locksidecar, waiting"
	exclusiveRow = "locksidecar, exclusive only"
	relayRow     = "relay without locks"
	depthRow     = "redis-benchmark at depth"
)

func (m *matrix) rows(w workload) []row {
	rows := []row{m.ours(oursRow, w)}
	if m.peersErr == nil {
		for _, l := range w.libraries {
			rows = append(rows, m.theirs(w, l))
		}
	}
	for _, other := range w.others {
		rows = append(rows, other(m, w)...)
	}
	return rows
}

// ours is a row through the daemon.
func (m *matrix) ours(name string, w workload) row {
	w.work.Addr = m.d.Socket
	if w.work.Keys > 0 {
		w.work.Wait = client.Forever
	}
	return m.row(name, w, harness.Fleet{Load: load.Sidecar, Watch: harness.Watch{Server: m.d.PID()}},
		nil)
}

// queueing shows the cost of tries: the same workload with callers that may wait.
func (m *matrix) queueing(w workload) []row {
	w.work.Wait = client.Forever
	return []row{m.ours(queueingRow, w)}
}

// exclusiveOnly shows how much of the result is due to shared mode.
func (m *matrix) exclusiveOnly(w workload) []row {
	w.work.Readers = 0
	return []row{m.ours(exclusiveRow, w)}
}

// theirs is a row of a library, directly at the Redis.
func (m *matrix) theirs(w workload, l library) row {
	w.work.Addr, w.work.Backoff, w.work.Readers = m.redis.Addr, l.backoff, 0
	if w.work.Keys > 0 {
		w.work.Wait = client.Forever
	}
	return m.row(l.row, w, harness.Fleet{Load: l.load, Program: m.peersBin}, nil)
}

// prepare prepares a run, and returns a function that cleans up after it.
type prepare func(*harness.Fleet, *load.WorkArgs) (after func(), err error)

// row completes fleet, and adds columns that only the matrix has. The connections are those that
// are opened with the workers; the daemon's belong to its own row. first may be nil.
func (m *matrix) row(name string, w workload, fleet harness.Fleet, first prepare) row {
	fleet.Procs, fleet.Warm, fleet.Window = w.crew.procs, m.Warm, m.Window
	fleet.Watch.Redis = []*harness.Redis{m.redis}
	if w.work.Keys == 1 && !m.Short {
		fleet.Window *= 2 // waits are long
	}
	w.work.Callers, w.work.TTL = w.crew.threads, redisTTL
	var idle, conns int
	return row{name, func() (*harness.Outcome, error) {
		if idle = m.redis.Clients(); fleet.Watch.Server == m.d.PID() {
			idle = 0
		}
		if first != nil {
			after, err := first(&fleet, &w.work)
			if err != nil {
				return nil, err
			}
			defer after()
		}
		m.sockets++ // each run has keys of its own, because fences on the board begin again
		w.work.Prefix = fmt.Sprintf("bench:%d", m.sockets)
		if w.work.Keys > 0 {
			board, err := load.NewBoard(m.Dir, w.work.Keys)
			if err != nil {
				return nil, err
			}
			defer os.Remove(board)
			w.work.Board = board
		}
		fleet.Args, fleet.Midway = w.work, func() { conns = m.redis.Clients() }
		return fleet.Run()
	}, func(o *harness.Outcome, c harness.Metrics) {
		c["store_conns"] = float64(max(0, conns-idle))
		if w.work.Keys == 1 {
			c["handoffs_s"] = float64(o.Handoffs) / o.Window.Seconds()
			c["redis_calls_handoff"] = o.RedisCalls / float64(max(1, o.Handoffs))
		}
	}}
}

// names returns the rows of the libraries whose load is one of loads, or of all libraries if none
// is given.
func (w workload) names(loads ...string) (names []string) {
	for _, l := range w.libraries {
		if len(loads) == 0 || slices.Contains(loads, l.load) {
			names = append(names, l.row)
		}
	}
	return names
}
