package scenario

import (
	"fmt"
	"os"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

const clientTTL = 30 * time.Second

// ClientArgs are the arguments of a worker in another language.
type ClientArgs struct {
	load.WorkArgs
	Sleep time.Duration // the pause between two polls of a peer that polls
}

// crew is a number of processes, and of threads in each.
type crew struct{ procs, threads int }

func (s crew) String() string { return fmt.Sprintf("%dx%d", s.procs, s.threads) }

// The workloads of the matrix for a crew in another language.
func langUnique(s crew) workload {
	return workload{name: "unique", about: "Keys of their own", crew: s}
}
func langHot(s crew) workload {
	return workload{name: "hot", about: "One key that all want", crew: s, work: load.WorkArgs{Keys: 1}}
}
func langMix(s crew) workload {
	return workload{name: "mix", about: "1000 keys, four of five acquires on a fifth of them", crew: s,
		work: load.WorkArgs{Keys: 1000, Skew: true}}
}
func langReads(s crew) workload {
	return workload{name: "reads", about: "100 keys, 95 % of acquires shared", crew: s,
		work: load.WorkArgs{Keys: 100, Readers: 0.95}}
}

// party is one way to locks in one language.
type party struct {
	name    string
	load    string   // the name of the load in the worker
	program []string // the command of the worker
	addr    string   // the daemon's socket, or the store
	poll    time.Duration
	crew    *harness.Crew // runs all rows; nil if each row has processes of its own
	store   string        // the address of the store that has the locks
	watch   harness.Watch
}

// straight reports whether the party uses the store without the daemon.
func (p party) straight() bool { return p.addr == p.store }

// language is one workload in one language. It is a scene of its own in the report.
type language struct {
	name string
	w    workload
}

func (l language) scene() string { return l.name + " " + l.w.scene() }

// run interleaves the rows of the parties.
func (l language) run(e *Env, parties ...party) error {
	var rows []row
	for _, p := range parties {
		rows = append(rows, e.speaking(l.w, p))
	}
	return e.interleave(l.scene(), rows)
}

// runHalf is like run, with half the rounds, but at least one.
func (l language) runHalf(e *Env, parties ...party) error {
	all := e.Rounds
	defer func() { e.Rounds = all }()
	e.Rounds = max(1, all/2)
	return l.run(e, parties...)
}

// draw adds a picture of the scene.
func (l language) draw(e *Env, parties ...party) {
	p := harness.Plot{
		Scene: l.scene(), Title: fmt.Sprintf("%s, %s, %d × %d threads", l.w.about, l.name, l.w.crew.procs,
			l.w.crew.threads),
		Rate: l.w.rate(), RateName: l.w.done() + " a second", TimesName: "acquire and release, together",
	}
	if l.w.work.Keys > 0 {
		p.TimesName = "wait for the lock"
	}
	for _, party := range parties {
		switch {
		case party.load == bareLoad:
			p.Limits = append(p.Limits, party.name)
		case !party.straight():
			p.Ours = append(p.Ours, party.name)
		}
	}
	e.Report.Draw(p)
}

// ratio returns the rate of one party divided by the rate of another, round by round.
func (l language) ratio(e *Env, a, b party) []float64 {
	return e.Report.Ratio(l.scene(), a.name, b.name, l.w.rate())
}

// clientStart bounds the time in which workers warm up. 16 JVMs take a while.
const clientStart = 3 * time.Minute

// speaking is a row of workers in another language. It includes the number of connections to the
// store of the workers, or of the daemon for them.
func (e *Env) speaking(w workload, p party) row {
	conns := 0
	return row{p.name, func() (*harness.Outcome, error) {
		e.sockets++ // each run has keys of its own, because fences on the board begin again
		args := ClientArgs{w.work, p.poll}
		args.Addr, args.Callers, args.TTL, args.Prefix = p.addr, w.crew.threads, clientTTL,
			fmt.Sprintf("bench:%d", e.sockets)
		if args.Keys > 0 {
			board, err := load.NewBoard(e.Dir, args.Keys)
			if err != nil {
				return nil, err
			}
			defer os.Remove(board)
			args.Board = board
		}
		workers := p.crew
		if workers == nil {
			workers = &harness.Crew{}
			defer workers.Stop()
		}
		f := e.fleet(p.load, args, w.crew.procs, p.watch)
		f.Program, f.ProgramArgs = p.program[0], p.program[1:]
		f.StartUp = clientStart
		if args.Keys == 1 && !e.Short {
			f.Window *= 2 // waits are long
		}
		f.Midway = func() {
			pids := workers.PIDs()
			if !p.straight() {
				pids = append(pids, p.watch.Server)
			}
			conns = harness.Connections(p.store, pids...)
		}
		return workers.Run(f)
	}, func(o *harness.Outcome, m harness.Metrics) {
		if w.work.Keys == 1 {
			m["handoffs_s"] = float64(o.Handoffs) / o.Window.Seconds()
		}
		m["store_conns"] = float64(conns)
	}}
}
