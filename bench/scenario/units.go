package scenario

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// What a fleet costs its store is the product of what one lock, one renewal and one connection
// cost: see bench/COSTS.md. This scene measures these costs on servers on this machine. Real
// daemons send the requests, as far as daemons send them: two daemons are two hosts, and sixteen a
// small fleet. Only the store's own CPU time counts, by the clock of its process, without what it
// uses when it is idle. Rows are not compared with each other, so they do not take turns. Each load
// is started, measured for some windows, and then released.

const (
	unitsScene  = "units"
	unitsRounds = 3
	unitsWindow = 500 * time.Millisecond
	unitsBatch  = 128 // locks per request
	unitsPause  = 300 * time.Millisecond
	unitsLong   = 10 * time.Minute // a TTL within which nothing is renewed
	// Locks that become due together are renewed in full batches. Locks that were acquired one by one
	// are renewed in batches of one.
	burstTTL = 4 * time.Second
	driftTTL = 4 * time.Second
)

func units(e *Env) error {
	return inTurn(func() error { return redisUnits(e) }, func() error { return clusterUnits(e) },
		func() error { return etcdUnits(e) })
}

// inTurn calls parts, and stops at the first error.
func inTurn(parts ...func() error) error {
	for _, part := range parts {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// bill is a store whose costs are measured.
type bill struct {
	e       *Env
	store   string // prefix of the rows' names
	pids    []int
	idle    float64 // CPU time per time while it is idle
	rounds  int
	window  time.Duration
	batches int          // number of batches of keys so far
	lost    atomic.Int64 // number of lost locks
}

// newBill also measures what the store uses when it is idle. So everything that is to be connected
// must be connected already.
func (e *Env) newBill(store string, pids ...int) *bill {
	b := &bill{e: e, store: store, pids: pids, rounds: min(e.Rounds, unitsRounds),
		window: min(e.Window, unitsWindow)}
	cpu, began := b.cpu(), time.Now()
	time.Sleep(2 * b.window)
	b.idle = float64(b.cpu()-cpu) / float64(time.Since(began))
	return b
}

func (b *bill) cpu() (sum time.Duration) {
	for _, pid := range b.pids {
		sum += harness.CPU(pid)
	}
	return sum
}

// add adds one round of a row.
func (b *bill) add(row string, m harness.Metrics) {
	b.e.Report.Add(unitsScene, b.store+": "+row, m)
	b.e.Logf("%s  %-50s %8.2f µs %8.0f B  (%.0f/s)", unitsScene, b.store+": "+row, m["cpu_us"],
		m["bytes"], m["ops_s"])
}

// flowMost is how long flow waits for something to happen. Only a fault reaches it.
const flowMost = 30 * time.Second

// flow measures the cost of something that happens meanwhile. counted returns how often it has
// happened.
func (b *bill) flow(row string, counted func() (float64, error)) error {
	for range b.rounds {
		if err := b.e.Ctx.Err(); err != nil {
			return err
		}
		n, err := counted()
		if err != nil {
			return err
		}
		cpu, began := b.cpu(), time.Now()
		var used, took time.Duration
		after := n
		// more than one window if the machine was paused
		for after <= n && took < flowMost {
			time.Sleep(b.window)
			used, took = b.cpu()-cpu, time.Since(began) // without the cost of counting
			if after, err = counted(); err != nil {
				return err
			}
		}
		if after <= n {
			return fmt.Errorf("%s, %s: nothing happened", b.store, row)
		}
		b.took(row, after-n, used, took)
	}
	return nil
}

// took adds a round in which something happened n times.
func (b *bill) took(row string, n float64, cpu, took time.Duration) {
	used := float64(cpu) - b.idle*float64(took)
	b.add(row, harness.Metrics{"cpu_us": max(0, used) / n / float64(time.Microsecond),
		"ops_s": n / took.Seconds()})
}

// passing measures the CPU time per second of n things that only exist.
func (b *bill) passing(row string, n int) {
	cpu, began := b.cpu(), time.Now()
	time.Sleep(4 * b.window) // longer, because the cost is small
	used, took := b.cpu()-cpu, time.Since(began)
	b.took(row, float64(n)*took.Seconds(), used, took)
}

// weigh adds a row for the memory of each of n things that make creates.
func (b *bill) weigh(row string, n int, bytes func() (float64, error), make func() error) error {
	before, err := bytes()
	if err != nil {
		return err
	}
	if err := make(); err != nil {
		return err
	}
	after, err := bytes()
	if err == nil {
		b.add(row, harness.Metrics{"bytes": (after - before) / float64(n)})
	}
	return err
}

// client connects to a daemon. A lost lock is a fault of the run: see end.
func (b *bill) client(d *Daemon) (*client.Client, error) {
	return client.Dial(b.e.Ctx, d.Socket, client.Options{Name: "bench", OnLost: func(client.Lost) {
		b.lost.Add(1)
	}})
}

// with connects to a daemon, calls do, and then releases everything.
func (b *bill) with(d *Daemon, do func(*client.Client) error) error {
	c, err := b.client(d)
	if err != nil {
		return err
	}
	err = errors.Join(do(c), c.Close())
	time.Sleep(unitsPause) // much is released
	return err
}

// end reports the faults.
func (b *bill) end() {
	if n := b.lost.Load(); n > 0 {
		b.e.Report.Fault("%s, %s: %d locks were lost", unitsScene, b.store, n)
	}
}

// some returns n, or less in a short run.
func (e *Env) some(n int) int {
	if e.Short {
		return n / 10
	}
	return n
}
