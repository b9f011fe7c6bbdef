package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// Two daemons on one Redis have a little of everything for hours: locks of all kinds by sessions
// that stay, wanted on both hosts, some that run out, and sessions that come, take locks, begin a
// wait and vanish (soak_load.go). What the daemons have of memory, descriptors and goroutines is to
// be in the second half what it was in the first. Medians of both halves are compared, without the
// first tenth of the time, in which pools and tables fill. A tenth is what the garbage collector
// and the sessions of the moment move; a leak of 1 KB a visitor is nearly half as much again after
// an hour.

const (
	soakScene   = "soak"
	soakEach    = time.Minute // between two samples, and more often in short runs
	soakSamples = 20          // at the least
	soakShown   = 12
	soakFlat    = 1.1
	soakRest    = 5 // descriptors, and goroutines, that may be left more than before
)

// ShortSoak is how long the scene goes on in a short run.
const ShortSoak = 6 * time.Second

// soakColumns are what has to stay as it is, a daemon.
var soakColumns = []struct{ column, what string }{
	{"rss_mib", "resident memory"}, {"files", "descriptors"}, {"goroutines", "goroutines"},
}

func soak(e *Env) error {
	r, err := e.redis()
	if err != nil {
		return err
	}
	defer r.Stop()
	t, err := e.twins("redis://" + r.Addr)
	if err != nil {
		return err
	}
	defer t.stop(e, soakScene)
	first, err := e.sampled(t, r)
	if err != nil {
		return err
	}
	s, err := e.soaking(t)
	if err != nil {
		return err
	}
	series, err := e.samples(t, r, s)
	s.stop()
	if err != nil {
		return err
	}
	e.showSoak(series)
	if err := e.givenBack(t[0], "bench:"); err != nil {
		return err
	}
	return e.afterSoak(t, r, first)
}

// sampled is what the daemons have now, each on average.
func (e *Env) sampled(t twins, r *harness.Redis) (harness.Metrics, error) {
	m := harness.Metrics{"redis_rss_mib": float64(harness.RSS(r.PID())) / mib}
	for _, d := range t {
		all, err := d.read(e.Ctx)
		if err != nil {
			return nil, err
		}
		for column, v := range map[string]float64{
			"rss_mib": float64(harness.RSS(d.PID())) / mib, "files": float64(harness.Descriptors(d.PID())),
			"goroutines": all.sum("go_goroutines", ""),
			"heap_mib":   all.sum("go_memstats_heap_inuse_bytes", "") / mib,
			"sessions":   all.sum("locksidecar_sessions", ""), "held": all.sum("locksidecar_held_locks", ""),
		} {
			m[column] += v / float64(len(t))
		}
	}
	return m, nil
}

// samples takes one now and then, for as long as it goes on.
func (e *Env) samples(t twins, r *harness.Redis, s *soaked) (series []harness.Metrics, err error) {
	each := min(soakEach, e.Soak/soakSamples)
	began, last := time.Now(), 0.0
	tick := time.NewTicker(each)
	defer tick.Stop()
	for time.Since(began) < e.Soak {
		select {
		case <-tick.C:
		case err := <-s.failed:
			return nil, err
		case <-e.Ctx.Done():
			return nil, e.Ctx.Err()
		}
		m, err := e.sampled(t, r)
		if err != nil {
			return nil, err
		}
		done := float64(s.done.Load())
		m["after_s"], m["ops_s"] = time.Since(began).Seconds(), (done-last)/each.Seconds()
		last = done
		series = append(series, m)
		e.Logf("%s  %6.0f s  %.1f MiB, %.1f files, %.1f goroutines; %.0f ops/s, %d visitors", soakScene,
			m["after_s"], m["rss_mib"], m["files"], m["goroutines"],
			m["ops_s"], s.visitors.Load())
	}
	return series, nil
}

// showSoak adds a small series to the report, and the checks.
func (e *Env) showSoak(series []harness.Metrics) {
	rep := e.Report
	for i := range min(soakShown, len(series)) {
		m := series[(i+1)*len(series)/min(soakShown, len(series))-1]
		rep.Add(soakScene, fmt.Sprintf("after %v", time.Duration(m["after_s"]*float64(time.Second)).Round(e.Soak/1000)), m)
	}
	warm := series[len(series)/10:]
	early, late := warm[:len(warm)/2], warm[len(warm)/2:]
	for _, c := range soakColumns {
		of := func(ms []harness.Metrics) float64 {
			vs := make([]float64, len(ms))
			for i, m := range ms {
				vs[i] = m[c.column]
			}
			slices.Sort(vs)
			return vs[len(vs)/2]
		}
		rep.AtMost(fmt.Sprintf("%v of a little of everything: %s of a daemon, second half to first",
			e.Soak, c.what), []float64{of(late) / of(early)}, soakFlat)
	}
}

// afterSoak sees that what sessions have used has gone with them.
func (e *Env) afterSoak(t twins, r *harness.Redis, first harness.Metrics) error {
	ctx, cancel := context.WithTimeout(e.Ctx, time.Minute)
	defer cancel()
	for {
		m, err := e.sampled(t, r)
		if err != nil {
			return err
		}
		files, goroutines := m["files"]-first["files"], m["goroutines"]-first["goroutines"]
		if files <= soakRest && goroutines <= soakRest {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			e.Report.Fault("%s: %.1f descriptors and %.1f goroutines are left of what has gone", soakScene,
				files, goroutines)
			return nil
		}
	}
}
