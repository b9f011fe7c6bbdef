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

// What people pick today, side by side with the daemon, all on one Redis: workloads of
// the kind that an application has, in two shapes, one process with 64 callers and 32
// processes with two each. A process has one client and one connection to the daemon; the
// libraries have what pools they come with.
//
// Keys of their own are tried: none queues, and what is timed is the pair. Where keys are
// wanted by many, all wait, and the wait is what is timed. A library that polls does so
// as it does by itself and as often as people tune it to; what is best there is picked
// round by round, for rates and for waits apart, which no one library may reach at once.
// Waits that the window cuts off do not count, which is to the libraries' good.
//
// Each workload is a scene of its own in the report.

const redisTTL = 30 * time.Second

// workload is who wants which keys.
type workload struct {
	name, about string
	crew        crew
	work        load.WorkArgs
	libraries   []library
	others      []func(*matrix, workload) []row // limits
}

func (w workload) scene() string { return fmt.Sprintf("%s %v", w.name, w.crew) }

// rate is the column that says how much was done.
func (w workload) rate() string {
	if w.work.Keys == 1 {
		return "handoffs_s"
	}
	return "ops_s"
}

// done is what rate counts: on one key, acquisitions by another than the last holder.
func (w workload) done() string {
	if w.work.Keys == 1 {
		return "handoffs"
	}
	return "pairs"
}

// library is a peer, as it is used.
type library struct {
	row, load string
	backoff   time.Duration
}

var (
	// trying is each library as it comes.
	trying = []library{{"rueidislock", "rueidislock", 0}, {"redislock", "redislock", 0},
		{"go-redis", "goredis", 0}, {"redsync", "redsync", 0}}
	// waiting is each in the ways that do best.
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

// matrix is the servers of the scene.
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

// The names of rows that are no library.
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

// queueing is tries' price: the same by callers who would wait.
func (m *matrix) queueing(w workload) []row {
	w.work.Wait = client.Forever
	return []row{m.ours(queueingRow, w)}
}

// exclusiveOnly is how much of the readers' row is the readers'.
func (m *matrix) exclusiveOnly(w workload) []row {
	w.work.Readers = 0
	return []row{m.ours(exclusiveRow, w)}
}

// theirs is a row of a library, straight at the Redis.
func (m *matrix) theirs(w workload, l library) row {
	w.work.Addr, w.work.Backoff, w.work.Readers = m.redis.Addr, l.backoff, 0
	if w.work.Keys > 0 {
		w.work.Wait = client.Forever
	}
	return m.row(l.row, w, harness.Fleet{Load: l.load, Program: m.peersBin}, nil)
}

// prepare readies a run, and returns what cleans up after it.
type prepare func(*harness.Fleet, *load.WorkArgs) (after func(), err error)

// row completes fleet, and adds what the matrix wants to know besides. The connections
// are those that come with the workers; the daemon's are its own row's. first may be nil.
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
		m.sockets++ // keys of their own: fences on the board start afresh
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

// names are the rows of the libraries whose load is one of loads, of all when none is given.
func (w workload) names(loads ...string) (names []string) {
	for _, l := range w.libraries {
		if len(loads) == 0 || slices.Contains(loads, l.load) {
			names = append(names, l.row)
		}
	}
	return names
}
