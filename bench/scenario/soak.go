package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// Two daemons on one Redis do a little of everything for hours. Some sessions stay. They acquire
// locks of all kinds, which both hosts use, and let some run out. Other sessions connect, acquire
// locks, begin a wait and disappear (soak_load.go). The memory, descriptors and goroutines of the
// daemons should be the same in the second half as in the first. The scene compares the medians of
// both halves, without the first tenth of the time, in which pools and tables fill. The garbage
// collector and the present sessions change the values by up to a tenth. A leak of 1 KB per visitor
// would add nearly a half in an hour.

const (
	soakScene   = "soak"
	soakEach    = time.Minute // between two samples; less in short runs
	soakSamples = 20          // minimum
	soakShown   = 12
	soakFlat    = 1.1
	soakRest    = 5 // descriptors, and goroutines, that may remain in addition
)

// ShortSoak is the duration of the scene in a short run.
const ShortSoak = 6 * time.Second

// soakColumns are the values of a daemon that have to stay the same.
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

// sampled returns the present values of the daemons, on average.
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

// samples takes samples until the scene ends.
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

// showSoak adds a short series to the report, and the checks.
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

// afterSoak checks that everything that sessions have used was released.
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
