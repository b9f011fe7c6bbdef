package scenario

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// Many sessions each hold a lock and make a call now and then. The scene measures the memory and
// descriptors of a session, and how long a call takes. It checks that everything is released when
// the sessions have ended. All sessions are on one daemon if it may have three descriptors for
// each. Otherwise there are as many daemons as necessary. A worker has the sessions of one daemon,
// with two descriptors each.

const (
	crowdScene    = "crowd"
	crowdSessions = 10_000
	crowdShort    = 300
	crowdBreath   = 5 * time.Second
	crowdFor      = 30 * time.Second
	crowdP99      = 10  // ms
	crowdFiles    = 3   // per session
	crowdSpare    = 200 // descriptors for everything else
	crowdPatience = 2 * time.Minute
)

func crowded(e *Env) error {
	sessions := crowdSessions
	if e.Short {
		sessions = crowdShort
	}
	files, err := harness.DescriptorLimit(crowdFiles*sessions + crowdSpare)
	if err != nil {
		return err
	}
	most := (files - crowdSpare) / crowdFiles
	daemons := (sessions + most - 1) / most
	if daemons > 1 {
		e.Report.Note("%s: this machine lets a process have at most %d descriptors, "+
			"so the sessions are on %d daemons.", crowdScene, files, daemons)
	}
	for round := range min(e.Rounds, 3) {
		for _, store := range []string{"embedded", "redis"} {
			m, err := e.crowdOn(store, daemons, sessions/daemons)
			if err != nil {
				return fmt.Errorf("%s: %w", store, err)
			}
			e.Report.Add(crowdScene, store, m)
			e.Logf("%s %d  %-8s  %.0f sessions on %d daemons, %.0f B and %.2f files each; %.0f calls/s, p50 %.2f, p99 %.2f ms", crowdScene, round+1, store,
				m["sessions"], daemons, m["rss_b_session"], m["files_session"], m["ops_s"], m["p50_us"]/1000,
				m["p99_us"]/1000)
		}
	}
	rep := e.Report
	for _, store := range []string{"embedded", "redis"} {
		rep.AtLeast("sessions with a lock each, "+store, rep.Values(crowdScene, store, "sessions"),
			float64(crowdSessions), 0)
		rep.AtMost("… a call meanwhile, p99 ms", rep.Values(crowdScene, store, "p99_ms"), crowdP99)
	}
	return nil
}

// crowdOn runs the sessions on several daemons of one store. If the store is embedded, each daemon
// has its own.
func (e *Env) crowdOn(store string, daemons, sessions int) (harness.Metrics, error) {
	url := "memory:"
	if store == "redis" {
		r, err := e.redis()
		if err != nil {
			return nil, err
		}
		defer r.Stop()
		url = "redis://" + r.Addr
	}
	f := e.fleet(load.Crowd, nil, daemons, harness.Watch{})
	args := load.CrowdArgs{Sessions: sessions, Breath: crowdBreath}
	if f.Window = crowdFor; e.Short {
		f.Window, args.Breath = 2*e.Window, e.Window/2
	}
	var all []*Daemon
	for range daemons {
		d, err := e.daemon(url)
		if err != nil {
			return nil, err
		}
		defer e.stop(crowdScene, d)
		all, args.Addrs = append(all, d), append(args.Addrs, d.Socket)
		f.Watch.Beside = append(f.Watch.Beside, d.PID())
	}
	taken := func() (rss, files float64) {
		for _, d := range all {
			rss += float64(harness.RSS(d.PID()))
			files += float64(harness.Descriptors(d.PID()))
		}
		return rss, files
	}
	empty, few := taken()
	var had, open float64
	f.Args, f.StartUp, f.Midway = args, crowdPatience, func() { had, open = taken() }
	o, err := f.Run()
	if err != nil {
		return nil, err
	}
	e.blame(crowdScene, store, o)
	left := time.Now()
	lost := 0.
	for _, d := range all {
		if err := e.givenBack(d, "bench:"); err != nil {
			return nil, err
		}
		counts, err := d.read(e.Ctx)
		if err != nil {
			return nil, err
		}
		lost += counts.sum("locksidecar_lost_total", "")
	}
	gone := time.Since(left)
	if lost > 0 {
		e.Report.Fault("%s, %s: %.0f locks were lost", crowdScene, store, lost)
	}
	_, after := taken()
	m := o.Metrics()
	m["sessions"], m["daemons"], m["p99_ms"] = float64(daemons*sessions), float64(daemons),
		m["p99_us"]/1000
	m["rss_b_session"], m["files_session"], m["files_after"] = (had-empty)/m["sessions"],
		(open-few)/m["sessions"], after-few
	m["gone_s"], m["daemon_cores"] = gone.Seconds(), o.ServerCPU.Seconds()/o.Window.Seconds()
	return m, nil
}
