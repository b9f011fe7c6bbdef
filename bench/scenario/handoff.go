package scenario

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// A key goes from process to process. Each process that gets it releases it at once and queues
// again, in one write. With a quiet release, one handoff is one message in and one out, like a
// round trip of an echo. The processes are different, so nothing can be batched. A release with an
// answer wakes one more process. Only grants after another process count. A page of shared memory
// shows whether two processes were ever inside at once, and whether each fence was larger than the
// one before.
//
// The turnstile makes the same quiet handoffs without a lock table. The difference between it and
// the echo is the cost of the exchange, not of the daemon.

var chainProcs = []int{2, 4, 8}

// chainChecked has the numbers of processes whose rates are checked, and the least ratio to the
// turnstile's.
var chainChecked = map[int]float64{2: 0.75, 4: 0.8}

func handoff(e *Env) error {
	const scene, echoRow = "handoff", "echo, 1 conn × 1"
	d, err := e.daemon("memory:")
	if err != nil {
		return err
	}
	defer e.stop(scene, d)
	echo, echoSocket, err := e.bare(load.Echo)
	if err != nil {
		return err
	}
	defer echo.Stop()
	handoffs := func(o *harness.Outcome, m harness.Metrics) {
		m["handoffs_s"] = float64(o.Handoffs) / o.Window.Seconds()
	}
	rows := []row{{echoRow, func() (*harness.Outcome, error) {
		size := load.RequestSize(load.Reentry)
		return e.fleet(load.Frames, load.FramesArgs{Addr: echoSocket, Kind: load.Echo, Conns: 1, Depth: 1,
			Request: size, Reply: size, Thread: true}, 1,
			harness.Watch{Server: echo.PID()}).Run()
	}, func(o *harness.Outcome, m harness.Metrics) { m["handoffs_s"] = m["ops_s"] }}}
	for _, procs := range chainProcs {
		rows = append(rows,
			row{chainRow(procs), func() (*harness.Outcome, error) { return e.chain(d.Process, d.Socket, procs, true) }, handoffs},
			row{answeredRow(procs), func() (*harness.Outcome, error) { return e.chain(d.Process, d.Socket, procs, false) }, handoffs},
			row{turnstileRow(procs), func() (*harness.Outcome, error) {
				return e.turnstile(procs)
			}, handoffs})
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	for _, procs := range slices.Sorted(maps.Keys(chainChecked)) {
		e.Report.AtLeast(fmt.Sprintf("handoffs among %d processes, to the turnstile", procs),
			e.Report.Ratio(scene, chainRow(procs), turnstileRow(procs), "handoffs_s"),
			chainChecked[procs], 0.9)
		e.Report.AtLeast(fmt.Sprintf("handoffs among %d processes, to serial echoes", procs),
			e.Report.Ratio(scene, chainRow(procs), echoRow, "handoffs_s"), 0.45, 0.6)
		e.Report.AtLeast(fmt.Sprintf("handoffs among %d processes with answered releases, to serial echoes", procs),
			e.Report.Ratio(scene, answeredRow(procs), echoRow, "handoffs_s"), 0.45, 0.6)
	}
	return nil
}

func chainRow(procs int) string { return fmt.Sprintf("%d processes", procs) }

func turnstileRow(procs int) string { return "turnstile, " + chainRow(procs) }

func answeredRow(procs int) string { return chainRow(procs) + ", answered" }

func (e *Env) chain(server *harness.Process, socket string, procs int,
	quiet bool) (*harness.Outcome, error) {
	shared, err := harness.NewShared(e.Dir)
	if err != nil {
		return nil, err
	}
	defer os.Remove(shared)
	e.sockets++ // each run has a key of its own, because fences on the page begin again
	args := load.ChainArgs{Addr: socket, Key: fmt.Sprintf("bench:chain:%d", e.sockets),
		Shared: shared, Quiet: quiet}
	return e.fleet(load.Chain, args, procs, harness.Watch{Server: server.PID()}).Run()
}

// turnstile runs the chain against a new bare server, because that server does not recover from
// faults.
func (e *Env) turnstile(procs int) (*harness.Outcome, error) {
	p, socket, err := e.bare(load.Turnstile)
	if err != nil {
		return nil, err
	}
	defer p.Stop()
	return e.chain(p, socket, procs, true)
}
