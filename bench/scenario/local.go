package scenario

import (
	"fmt"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// A decision that the host makes alone should cost little more than the exchange itself. The scene
// measures re-entries, and tries of a key that another session holds. It compares them with an echo
// server that has frames of the same sizes, the same client and as many requests in flight.

// shape is a number of connections, and the number of requests in flight on each.
type shape struct {
	conns, depth int
	target       float64
}

var shapes = []shape{{1, 1, 0.6}, {8, 1, 0.6}, {64, 1, 0.6}, {8, 32, 0.2}}

func (s shape) String() string { return fmt.Sprintf("%d conn × %d", s.conns, s.depth) }

func local(e *Env) error {
	const scene = "local"
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
	replies, err := e.replySizes(d)
	if err != nil {
		return err
	}
	var rows []row
	for _, s := range shapes {
		for _, kind := range []string{load.Reentry, load.Busy} {
			name := fmt.Sprintf("%s, %s", kind, s)
			rows = append(rows,
				row{"echo for " + name, func() (*harness.Outcome, error) {
					return e.fleet(load.Frames, load.FramesArgs{Addr: echoSocket, Kind: load.Echo, Conns: s.conns,
						Depth:   s.depth,
						Request: load.RequestSize(kind), Reply: replies[kind]}, 1, harness.Watch{Server: echo.PID()}).Run()
				}, replyColumn},
				row{name, func() (*harness.Outcome, error) {
					return e.fleet(load.Frames, load.FramesArgs{Addr: d.Socket, Kind: kind, Conns: s.conns,
						Depth: s.depth}, 1,
						harness.Watch{Server: d.PID()}).Run()
				}, replyColumn})
		}
	}
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	for _, s := range shapes {
		for _, kind := range []string{load.Reentry, load.Busy} {
			name := fmt.Sprintf("%s, %s", kind, s)
			e.Report.AtLeast(name+" in flight, to echo",
				e.Report.Ratio(scene, name, "echo for "+name, "ops_s"), s.target, 0)
		}
	}
	return nil
}

func replyColumn(o *harness.Outcome, m harness.Metrics) {
	if n := o.Hist.N(); n > 0 {
		m["reply_bytes"] = float64(o.Bytes) / float64(n)
	}
}

// replySizes measures the payloads of the daemon's answers, so that the echo server can send
// answers of the same size.
func (e *Env) replySizes(d *Daemon) (map[string]int, error) {
	sizes := map[string]int{}
	for _, kind := range []string{load.Reentry, load.Busy} {
		f := e.fleet(load.Frames, load.FramesArgs{Addr: d.Socket, Kind: kind, Conns: 1, Depth: 1}, 1,
			harness.Watch{})
		f.Warm, f.Window = e.Warm/4, e.Window/4
		o, err := e.measure(f.Run)
		if err != nil {
			return nil, fmt.Errorf("measure %s frames: %w", kind, err)
		}
		if o.Hist.N() == 0 {
			return nil, fmt.Errorf("measure %s frames: nothing was answered: %s", kind, o.LastErr)
		}
		sizes[kind] = int(float64(o.Bytes)/float64(o.Hist.N()) + 0.5)
	}
	return sizes, nil
}
