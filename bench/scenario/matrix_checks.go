package scenario

import (
	"fmt"
	"math"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// check compares a workload with its targets, and shows what is possible.
func (m *matrix) check(w workload) {
	switch {
	case w.work.Keys == 0 && w.crew.procs == 1:
		m.checkOneProcess(w)
	case w.work.Keys == 0:
		m.checkManyProcesses(w)
	case w.name == "hot" && w.crew.procs > 1:
		m.checkHot(w)
	case w.name == "hot 1ms":
		m.checkWaits(w, 8)
	default:
		m.Report.Limit(fmt.Sprintf("%s: %s a second, to the best library", w.scene(), w.done()),
			m.toBest(w, oursRow))
	}
}

func (m *matrix) checkOneProcess(w workload) {
	rep, scene := m.Report, w.scene()
	rep.AtLeast(scene+": pairs a second, to rueidislock",
		rep.Ratio(scene, oursRow, "rueidislock", "ops_s"), 1.4, 1.6)
	m.limits(w, "rueidislock", depthOf(1), depthOf(depthKeys))
	rep.AtLeast(scene+": pairs a second, to redislock",
		rep.Ratio(scene, oursRow, "redislock", "ops_s"), 2.4, 3)
	m.limits(w, "redislock")
	rep.AtMost(scene+": Redis CPU a pair, to redislock",
		rep.Ratio(scene, oursRow, "redislock", "redis_cpu_us_op"), 0.25)
	rep.Limit(scene+": "+relayRow+", Redis CPU a pair, to redislock",
		rep.Ratio(scene, relayRow, "redislock", "redis_cpu_us_op"))
}

func (m *matrix) checkManyProcesses(w workload) {
	rep, scene := m.Report, w.scene()
	rep.AtLeast(scene+": pairs a second, to redislock",
		rep.Ratio(scene, oursRow, "redislock", "ops_s"), 1, 0)
	m.limits(w, "redislock")
	rep.AtMost(scene+": Redis CPU a pair, to redislock",
		rep.Ratio(scene, oursRow, "redislock", "redis_cpu_us_op"), 0.45)
	rep.AtMost(scene+": connections at Redis", rep.Values(scene, oursRow, "store_conns"), 4)
}

// limits shows the ratios of bare rows to a library.
func (m *matrix) limits(w workload, library string, more ...string) {
	for _, bare := range append([]string{relayRow}, more...) {
		m.Report.Limit(fmt.Sprintf("%s: %s, pairs a second, to %s", w.scene(), bare, library),
			m.Report.Ratio(w.scene(), bare, library, "ops_s"))
	}
}

func (m *matrix) checkHot(w workload) {
	rep, scene := m.Report, w.scene()
	rueidis := rep.Best(scene, w.names("rueidislock", "rueidislock-loop"), "handoffs_s", math.Max)
	rep.AtLeast(scene+": handoffs a second, to rueidislock",
		harness.Quotients(rep.Values(scene, oursRow, "handoffs_s"), rueidis), 15, 20)
	rep.AtLeast(scene+": handoffs a second, to the best library", m.toBest(w, oursRow), 4.5, 6)
	rep.Limit(scene+": "+relayRow+", handoffs a second, to the best library", m.toBest(w, relayRow))
	m.checkWaits(w, 15)
	rep.AtLeast(scene+": Jain's index", rep.Values(scene, oursRow, "jain"), 0.99, 0)
	rep.AtMost(scene+": store commands a handoff",
		rep.Values(scene, oursRow, "redis_calls_handoff"), 0.2)
}

// toBest returns the ratio of a row's rate to the highest rate of a library, round by round.
func (m *matrix) toBest(w workload, row string) []float64 {
	best := m.Report.Best(w.scene(), w.names(), w.rate(), math.Max)
	return harness.Quotients(m.Report.Values(w.scene(), row, w.rate()), best)
}

// checkWaits checks the p99 wait against the library with the shortest.
func (m *matrix) checkWaits(w workload, times float64) {
	rep, scene := m.Report, w.scene()
	best := rep.Best(scene, w.names(), "p99_us", math.Min)
	rep.AtLeast(scene+": the best library's p99 wait, to ours",
		harness.Quotients(best, rep.Values(scene, oursRow, "p99_us")), times, 0)
	rep.Limit(scene+": the best library's p99 wait, to the wait with a "+relayRow,
		harness.Quotients(best, rep.Values(scene, relayRow, "p99_us")))
}

// plot returns the picture of a workload.
func (m *matrix) plot(w workload) harness.Plot {
	p := harness.Plot{
		Scene: w.scene(), Title: fmt.Sprintf("%s, %d × %d callers", w.about, w.crew.procs,
			w.crew.threads),
		Rate: w.rate(), RateName: w.done() + " a second", TimesName: "acquire and release, together",
		Ours: []string{oursRow, queueingRow, exclusiveRow}, Limits: []string{relayRow},
		Leave: []string{depthOf(1), depthOf(depthKeys)}, // they have no clients, and do not fit the scale
	}
	if w.crew.procs == 1 {
		p.Title = fmt.Sprintf("%s, one process with %d callers", w.about, w.crew.threads)
	}
	if w.work.Keys > 0 {
		p.TimesName = "wait for the lock"
	}
	return p
}
