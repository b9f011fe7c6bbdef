package scenario

import (
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// One caller alone acquires and releases keys that nothing else uses, through the daemon and with
// go-redis directly at the Redis. There is nothing to batch, so the daemon only adds a hop: at
// least an echo on the socket for each of the two requests. That is much with a local Redis, and
// little if the Redis is half a millisecond away. The line costs both the same.

const lineRoundTrip = 500 * time.Microsecond

func alone(e *Env) error {
	const scene, ours, peerRow, echoRow = "alone", "locksidecar", "go-redis", "echo"
	const away = ", 0.5 ms away"
	r, err := e.redis()
	if err != nil {
		return err
	}
	defer r.Stop()
	l, err := e.line(r.Addr)
	if err != nil {
		return err
	}
	defer l.Stop()
	near, err := e.daemon("redis://" + r.Addr)
	if err != nil {
		return err
	}
	defer e.stop(scene, near)
	far, err := e.daemon("redis://" + l.Addr)
	if err != nil {
		return err
	}
	defer e.stop(scene, far)
	echo, echoSocket, err := e.bare(load.Echo)
	if err != nil {
		return err
	}
	defer echo.Stop()
	relay, relaySocket, err := e.startRelay(r.Addr)
	if err != nil {
		return err
	}
	defer relay.Stop()
	size := load.RequestSize(load.Reentry)
	args := load.PairsArgs{Addr: r.Addr, Callers: 1, TTL: redisTTL}
	quiet := args
	quiet.Quiet = true
	lined := args
	lined.Addr = l.Addr
	watch := harness.Watch{Redis: []*harness.Redis{r}}
	watchLine := watch
	watchLine.Stores = []int{l.PID()}
	rows := []row{
		{echoRow, func() (*harness.Outcome, error) {
			return e.fleet(load.Frames, load.FramesArgs{Addr: echoSocket, Kind: load.Echo, Conns: 1,
				Depth: 1, Request: size, Reply: size}, 1,
				harness.Watch{Server: echo.PID()}).Run()
		}, nil},
		{ours, e.pairs(near, args, watch), nil},
		{unconfirmed, e.pairs(near, quiet, watch), nil},
		{ours + away, e.pairs(far, args, watchLine), nil},
		{relayRow, e.pairs(&Daemon{relay, relaySocket}, args, watch), nil},
	}
	rows = append(rows, e.peerRows(watch, args, peer{peerRow, "goredis"})...)
	rows = append(rows, e.peerRows(watchLine, lined, peer{peerRow + away, "goredis"})...)
	if err := e.interleave(scene, rows); err != nil {
		return err
	}
	rep := e.Report
	p50 := func(name string) []float64 { return rep.Values(scene, name, "p50_us") }
	rep.AtMost("one caller alone, p50 of a pair, to go-redis",
		rep.Ratio(scene, ours, peerRow, "p50_us"), 1.8)
	rep.AtMost("one caller alone without confirmation, p50 of a pair, to go-redis",
		rep.Ratio(scene, unconfirmed, peerRow, "p50_us"), 1.1)
	rep.Limit("a relay without locks alone, p50 of a pair, to go-redis",
		rep.Ratio(scene, relayRow, peerRow, "p50_us"))
	rep.Limit("go-redis and two echoes on the socket, to go-redis",
		each(p50(peerRow), p50(echoRow), func(g, e float64) float64 { return (g + 2*e) / g }))
	rep.AtMost("one caller alone, 0.5 ms away, p50 of a pair, to go-redis",
		rep.Ratio(scene, ours+away, peerRow+away, "p50_us"), 1.15)
	added := func(away, near float64) float64 { return (away - near) / 2000 }
	rep.Limit("the line, ms on a round trip of locksidecar", each(p50(ours+away), p50(ours), added))
	rep.Limit("the line, ms on a round trip of go-redis", each(p50(peerRow+away), p50(peerRow), added))
	return nil
}

// each combines two columns, round by round.
func each(a, b []float64, f func(a, b float64) float64) (vs []float64) {
	for i := range min(len(a), len(b)) {
		vs = append(vs, f(a[i], b[i]))
	}
	return vs
}

// line is a process that delays what goes to a server and back.
type line struct {
	*harness.Process
	Addr  string
	close func() error
}

// line opens a line with a delay of lineRoundTrip to target.
func (e *Env) line(target string) (*line, error) {
	p, socket, err := e.bare(load.Line)
	if err != nil {
		return nil, err
	}
	l := &line{Process: p}
	if l.Addr, l.close, err = load.OpenLine(socket, target, lineRoundTrip); err != nil {
		p.Stop()
		return nil, err
	}
	return l, nil
}

func (l *line) Stop() error {
	l.close()
	return l.Process.Stop()
}
