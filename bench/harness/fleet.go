package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Fleet is a number of workers that run one load together.
type Fleet struct {
	Program string // the program of the workers; "" for this program
	// ProgramArgs are the first arguments of a program that is not written in Go.
	ProgramArgs []string
	Midway      func() // called in the middle of the window; may be nil
	Load        string
	Args        any // arguments of the load, encoded as JSON
	Procs       int // at least 1
	Warm        time.Duration
	Window      time.Duration
	Watch       Watch
	StartUp     time.Duration // maximum time until workers are ready; 0 for patience
}

// Watch names the processes and counters to observe during the window.
type Watch struct {
	// a process whose CPU time is measured, such as the daemon or the echo server; 0 for none
	Server int
	Beside []int    // more processes of this kind
	Redis  []*Redis // the servers whose counters are read and added up
	Stores []int    // processes of other stores, whose CPU times are added up
}

// Outcome is the result of a fleet, for all workers together.
type Outcome struct {
	tally
	PerCaller  []uint64
	Window     time.Duration // mean over the workers
	ClientCPU  time.Duration
	ServerCPU  time.Duration
	RedisCPU   time.Duration
	RedisCalls float64
	// RedisScripts is how many of RedisCalls were scripts. The commands that scripts call are counted
	// in RedisCalls, too.
	RedisScripts float64
	StoreCPU     time.Duration
	PingPong     time.Duration // of the machine, just before the window
	Idle         float64       // percent of the machine's time in the window
	Steal        float64
	busy         time.Duration // used by all processes of the machine in the window
	machine      time.Duration // available in the window, over all cores
}

// Run starts the workers, waits until all are ready, and measures. It blocks for slightly longer
// than Warm + Window.
func (f Fleet) Run() (*Outcome, error) {
	var c Crew
	defer c.Stop()
	return c.Run(f)
}

// UntilDone calls run. If run has done nothing, and without an error, UntilDone calls it again, for
// some seconds, or until ctx ends.
func UntilDone(ctx context.Context, run func() (*Outcome, error)) (*Outcome, error) {
	began := time.Now()
	o, err := run()
	for time.Since(began) < patience && err == nil && o.Hist.N() == 0 && o.Errs == 0 &&
		ctx.Err() == nil {
		o, err = run()
	}
	return o, err
}

// observe reads the servers' counters at the beginning and the end of the window.
func (f Fleet) observe(start time.Time, out *Outcome) error {
	time.Sleep(time.Until(start))
	return f.Watch.during(out, func() error {
		if f.Midway != nil {
			time.Sleep(time.Until(start.Add(f.Window / 2)))
			f.Midway()
		}
		time.Sleep(time.Until(start.Add(f.Window)))
		return nil
	})
}

// During reads the counters before and after a call of do in this process, for work without a
// fleet. The caller adds its own counts.
func (w *Watch) During(do func() error) (*Outcome, error) {
	out := &Outcome{}
	var err error
	if out.PingPong, err = PingPong(time.Second); err != nil {
		return nil, err
	}
	own, began := CPU(os.Getpid()), time.Now()
	err = w.during(out, func() error {
		err := do()
		out.ClientCPU, out.Window = CPU(os.Getpid())-own, time.Since(began)
		return err
	})
	return out, err
}

func (w *Watch) during(out *Outcome, do func() error) error {
	before, err := w.redis()
	if err != nil {
		return err
	}
	m, cpu, stores := readMachineTimes(), w.servers(), together(w.Stores)
	if err := do(); err != nil {
		return err
	}
	out.ServerCPU = w.servers() - cpu
	out.StoreCPU = together(w.Stores) - stores
	n := readMachineTimes()
	out.Idle, out.Steal = n.since(m)
	out.machine, out.busy = n.time(m)
	after, err := w.redis()
	if err != nil {
		return err
	}
	out.RedisCPU = after.CPU - before.CPU
	out.RedisCalls = after.Calls - before.Calls
	out.RedisScripts = after.Scripts - before.Scripts
	return nil
}

func (w *Watch) redis() (sum RedisInfo, err error) {
	for _, r := range w.Redis {
		in, err := r.Info()
		if err != nil {
			return sum, err
		}
		sum.CPU += in.CPU
		sum.Calls += in.Calls
		sum.Scripts += in.Scripts
	}
	return sum, nil
}

func (w *Watch) servers() time.Duration { return CPU(w.Server) + together(w.Beside) }

func together(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		sum += CPU(pid)
	}
	return sum
}

// worker is one process of a fleet, as its parent sees it.
type worker struct {
	*Process
	in  *json.Decoder
	out *json.Encoder
}

func (f Fleet) start(proc int) (*worker, error) {
	args, err := json.Marshal(f.Args)
	if err != nil {
		return nil, err
	}
	program := f.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	p, err := startPiped(program, roleEnv+"="+roleWorker, f.ProgramArgs...)
	if err != nil {
		return nil, err
	}
	w := &worker{p, json.NewDecoder(p.stdout), json.NewEncoder(p.stdin)}
	if err := w.out.Encode(Spec{f.Load, args, proc, f.Warm, f.Window}); err != nil {
		w.Stop()
		return nil, w.failed("take its orders", err)
	}
	return w, nil
}

func (w *worker) failed(what string, err error) error {
	w.Stop()
	return fmt.Errorf("worker did not %s: %w\n%s", what, err, w.Said())
}

// Others returns the share of the machine, in percent, that other programs than the benchmark have
// used.
func (o *Outcome) Others() float64 {
	if o.machine == 0 {
		return 0
	}
	return 100 * max(0, float64(o.busy-o.ClientCPU-o.ServerCPU-o.RedisCPU-o.StoreCPU)) / float64(o.machine)
}

// Rate returns the number of operations per second.
func (o *Outcome) Rate() float64 { return float64(o.Hist.N()) / o.Window.Seconds() }

const othersColumn = "others_pct"

// Metrics returns the usual columns.
func (o *Outcome) Metrics() Metrics {
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	n := float64(o.Hist.N())
	m := Metrics{
		"ops_s": o.Rate(), "p50_us": us(o.Hist.Quantile(0.5)), "p99_us": us(o.Hist.Quantile(0.99)),
		"p999_us": us(o.Hist.Quantile(0.999)), "max_us": us(o.Hist.Max()),
		"errors": float64(o.Errs), "idle_pct": o.Idle, "steal_pct": o.Steal, othersColumn: o.Others(),
		"pingpong_us": us(o.PingPong),
	}
	if n > 0 {
		m["client_cpu_us_op"] = us(o.ClientCPU) / n
		if o.ServerCPU > 0 {
			m["server_cpu_us_op"] = us(o.ServerCPU) / n
		}
		if o.StoreCPU > 0 {
			m["store_cpu_us_op"] = us(o.StoreCPU) / n
		}
		if o.RedisCalls > 0 {
			m["redis_cpu_us_op"] = us(o.RedisCPU) / n
			m["redis_calls_op"] = o.RedisCalls / n
			m["redis_scripts_op"] = o.RedisScripts / n
		}
	}
	if len(o.PerCaller) > 1 {
		m["jain"] = Jain(o.PerCaller)
	}
	return m
}

// Jain returns Jain's fairness index, which is 1 when all shares are equal.
func Jain(ns []uint64) float64 {
	var sum, squares float64
	for _, n := range ns {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(ns)) * squares)
}
