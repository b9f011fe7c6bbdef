package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Spec says what a worker has to run.
type Spec struct {
	Load   string          // its name in the program's table
	Args   json.RawMessage // the load's own arguments
	Proc   int             // the number of the worker in its fleet, from 0
	Warm   time.Duration
	Window time.Duration
}

// Load is one kind of work in a worker process.
type Load interface {
	// Open connects, and returns the number of callers.
	Open(spec *Spec) (callers int, err error)
	// Run runs one caller, counted from 0. It returns when rec.Stopped is true. ctx ends a moment
	// later, for callers that are waiting then.
	Run(ctx context.Context, caller int, rec *Rec) error
	// Close releases what Open has acquired. All callers have returned before.
	Close()
}

// The phases of a run.
const (
	warming int32 = iota
	measuring
	stopped
)

// Rec is the record of one caller. Only that caller may use it.
type Rec struct {
	phase *atomic.Int32
	tally
}

// tally has the counts of callers. They are for the window only, unless a comment says otherwise.
type tally struct {
	Hist     Hist
	Apart    Hist // operations that a load also wants to see separately
	Handoffs uint64
	Bytes    uint64
	// These faults count from the first moment to the last, because they must never happen.
	Overlaps, FenceFaults, Errs uint64
	LastErr                     string
}

func (t *tally) merge(o *tally) {
	t.Hist.Merge(&o.Hist)
	t.Apart.Merge(&o.Apart)
	t.Handoffs += o.Handoffs
	t.Bytes += o.Bytes
	t.Overlaps += o.Overlaps
	t.FenceFaults += o.FenceFaults
	t.Errs += o.Errs
	if o.LastErr != "" {
		t.LastErr = o.LastErr
	}
}

// Stopped reports whether the window has ended.
func (r *Rec) Stopped() bool { return r.phase.Load() == stopped }

// Op counts one operation that has just ended.
func (r *Rec) Op(took time.Duration) {
	if r.phase.Load() == measuring {
		r.Hist.Add(took)
	}
}

// OpApart also counts an operation of Op separately.
func (r *Rec) OpApart(took time.Duration) {
	if r.phase.Load() == measuring {
		r.Apart.Add(took)
	}
}

// Received counts bytes of replies.
func (r *Rec) Received(n int) {
	if r.phase.Load() == measuring {
		r.Bytes += uint64(n)
	}
}

// Entered counts the result of Shared.Enter.
func (r *Rec) Entered(s Seen) {
	if s.Handoff && r.phase.Load() == measuring {
		r.Handoffs++
	}
	if s.Overlap {
		r.Overlaps++
	}
	if s.FenceFault {
		r.FenceFaults++
	}
}

// Err counts a failure.
func (r *Rec) Err(err error) {
	r.Errs++
	r.LastErr = err.Error()
}

// report is what a worker sends to its parent.
type report struct {
	Tally     tally
	PerCaller []uint64
	CPU       time.Duration
	Window    time.Duration
}

// Program lists what an executable can be started as, in addition to itself.
type Program struct {
	Loads   map[string]func() Load
	Servers map[string]func(net.Listener) error // bare servers for comparison
}

const (
	roleEnv    = "LOCKSIDECAR_BENCH_ROLE"
	roleWorker = "worker"
	roleServer = "server"
)

// Main runs this process as a worker or a bare server if it was started as one. Otherwise it
// returns at once.
func Main(p Program) {
	var err error
	switch os.Getenv(roleEnv) {
	case "":
		return
	case roleServer:
		err = p.serve(os.Args[1], os.Args[2])
	case roleWorker:
		err = serveWorker(p.Loads)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (p *Program) serve(name, path string) error {
	serve := p.Servers[name]
	if serve == nil {
		return fmt.Errorf("no server %q", name)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	return serve(l)
}

// serveWorker communicates with its parent in lines of JSON. It reads the spec, writes "ready",
// reads the start time, and writes the report.
func serveWorker(loads map[string]func() Load) error {
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	out := json.NewEncoder(os.Stdout)
	var spec Spec
	if err := in.Decode(&spec); err != nil {
		return fmt.Errorf("read spec: %w", err)
	}
	newLoad := loads[spec.Load]
	if newLoad == nil {
		return fmt.Errorf("no load %q", spec.Load)
	}
	l := newLoad()
	callers, err := l.Open(&spec)
	if err != nil {
		return fmt.Errorf("open load %s: %w", spec.Load, err)
	}
	if err := out.Encode("ready"); err != nil {
		return err
	}
	var start time.Time
	if err := in.Decode(&start); err != nil {
		return fmt.Errorf("read start: %w", err)
	}
	r := runLoad(l, &spec, callers, start)
	l.Close()
	return out.Encode(r)
}

func runLoad(l Load, spec *Spec, callers int, start time.Time) *report {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var phase atomic.Int32
	recs := make([]Rec, callers)
	var wg sync.WaitGroup
	for i := range recs {
		recs[i].phase = &phase
		wg.Go(func() {
			if err := l.Run(ctx, i, &recs[i]); err != nil && !recs[i].Stopped() {
				recs[i].Err(err)
			}
		})
	}
	time.Sleep(time.Until(start))
	cpu, begin := CPU(os.Getpid()), time.Now()
	phase.Store(measuring)
	time.Sleep(spec.Window)
	phase.Store(stopped)
	r := &report{CPU: CPU(os.Getpid()) - cpu, Window: time.Since(begin)}
	unblock := time.AfterFunc(200*time.Millisecond, cancel)
	wg.Wait()
	unblock.Stop()
	for i := range recs {
		r.Tally.merge(&recs[i].tally)
		r.PerCaller = append(r.PerCaller, recs[i].Hist.N())
	}
	return r
}
