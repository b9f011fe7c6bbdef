package sim

import "fmt"

// The worlds of STUDY.md.

func studyTables() []studyTable {
	return []studyTable{boundsTable(), timeTable(), unevenTable(), farTable(),
		lingerTable(), pauseTable()}
}

// roundsOf is how long a world runs for many rounds of its hosts, whose holds are so long.
func roundsOf(hosts int, hold int64) int64 {
	few := map[int64]int64{0: 4 * sec, ms: 20 * sec, 10 * ms: 60 * sec}[hold]
	if hosts > 10 {
		return 3 * few
	}
	return few
}

var sharedHead = []string{"holds a second", "without a trip", "Jain", "median wait", "longest wait",
	"longest gap of a host", "store ops a hold"}

// sharing is a world in which hosts share a key.
func sharing(p Profile, hold int64) func() ([]string, *Failure) {
	return func() ([]string, *Failure) {
		r, f := shareKey(p, hold, roundsOf(p.Hosts, hold))
		return []string{fmt.Sprint(r.rate), percent(r.local), fmt.Sprintf("%.3f", r.jain), span(r.median),
			span(max(r.longest[0], r.longest[1])), span(r.gap), fmt.Sprintf("%.2f", r.ops)}, f
	}
}

// boundsTable has bounds by number alone.
func boundsTable() studyTable {
	s := studyTable{name: "bounds", head: append([]string{"hosts", "hold", "bound"}, sharedHead...)}
	for _, hosts := range []int{2, 10, 100} {
		for _, hold := range []int64{0, ms, 10 * ms} {
			for _, hands := range []int{1, 8, 64, endless} {
				p := studyProfile()
				p.Hosts, p.Clients, p.Hands, p.HandTime = hosts, 4, hands, 3600*sec
				s.rows = append(s.rows, studyRow{[]string{fmt.Sprint(hosts), span(hold), bound(hands)},
					hands == 8 && (hosts == 10 && hold == 10*ms || hosts == 100 && hold == ms), sharing(p, hold)})
			}
		}
	}
	return s
}

// timeTable has them beside a bound by time.
func timeTable() studyTable {
	s := studyTable{name: "time", head: append([]string{"hosts", "hold", "bound"}, sharedHead...)}
	for _, hosts := range []int{10, 100} {
		for _, hold := range []int64{0, ms, 10 * ms} {
			for _, hands := range []int{8, 64, endless} {
				p := studyProfile()
				p.Hosts, p.Clients, p.Hands = hosts, 4, hands
				s.rows = append(s.rows, studyRow{[]string{fmt.Sprint(hosts), span(hold),
					bound(hands) + ", 50 ms"},
					hold == 10*ms && hosts == 10 && hands == 8, sharing(p, hold)})
			}
		}
	}
	return s
}

// unevenTable has a host with many clients among others with one each.
func unevenTable() studyTable {
	const hold = ms
	s := studyTable{name: "uneven", head: []string{"hosts", "bound", "holds a second",
		"share of the first", "median wait there", "longest wait there",
		"median wait elsewhere", "longest wait elsewhere", "store ops a hold"}}
	for _, hosts := range []int{2, 10, 100} {
		for _, hands := range []int{1, 8, 64, endless} {
			p := studyProfile()
			p.Hosts, p.Clients, p.Crowd, p.Hands = hosts, 1, 64, hands
			s.rows = append(s.rows, studyRow{[]string{fmt.Sprint(hosts), bound(hands) + ", 50 ms"},
				hosts == 10 && hands == 8,
				func() ([]string, *Failure) {
					r, f := shareKey(p, hold, roundsOf(p.Hosts, hold))
					return []string{fmt.Sprint(r.rate), percent(r.first), span(r.typical[0]), span(r.longest[0]),
						span(r.typical[1]), span(r.longest[1]), fmt.Sprintf("%.2f", r.ops)}, f
				}})
		}
	}
	return s
}

// farTable has the defaults, and stores that are far away.
func farTable() studyTable {
	const hold = 10 * ms
	s := studyTable{name: "far", head: append([]string{"round trip", "bound"}, sharedHead...)}
	for _, way := range []int64{500 * us, 5 * ms, 20 * ms, 50 * ms} {
		for _, hands := range []int{1, 8, 64} {
			p := studyProfile()
			p.Hosts, p.Clients, p.Latency, p.Hands = 10, 4, way, hands
			s.rows = append(s.rows, studyRow{[]string{span(2 * way), bound(hands) + ", 50 ms"},
				way == 20*ms && hands == 8, sharing(p, hold)})
		}
	}
	return s
}

var strolledHead = []string{"without a trip", "store ops an acquire", "median wait", "p99",
	"p99 from another host", "p99 of giving up",
	"p99 of a busy try", "tries busy for nothing"}

// strolls is a world in which hosts come back to keys, more or less.
func strolls(a affinity, think, linger, pause int64) func() ([]string, *Failure) {
	p := studyProfile()
	p.Hosts, p.Clients, p.Keys, p.Linger, p.Pause = 4, 8, 32, linger, pause
	return func() ([]string, *Failure) {
		r, f := strollAbout(p, a, think, max(120*sec, 600*think))
		n := max(1, r.acquires)
		return []string{percent(r.kept * 1000 / n), fmt.Sprintf("%.2f", float64(r.ops)/float64(n)),
			span(quantile(r.waits, 500)), span(quantile(r.waits, 990)),
			span(quantile(r.moves, 990)), span(quantile(r.gives, 990)), span(quantile(r.refused, 990)),
			fmt.Sprintf("%d of %d", r.wrong, r.lone)}, f
	}
}

var affinities = []affinity{
	{name: "by one host"},
	{name: "99/1", away: 10},
	{name: "90/10, lent for 20 uses", stays: 180, lent: 20},
	{name: "by hosts in turn, 20 uses each", stays: 20},
	{name: "by any host", away: 750},
}

// lingerTable has leases that linger.
func lingerTable() studyTable {
	s := studyTable{name: "linger", head: append([]string{"keys are used", "again after", "linger"},
		strolledHead...)}
	for _, a := range affinities {
		for _, think := range []int64{50 * ms, sec} {
			for _, linger := range []int64{0, 200 * ms, 2 * sec} {
				s.rows = append(s.rows, studyRow{[]string{a.name, span(think), span(linger)}, a.away == 10 &&
					think == sec && linger == 2*sec,
					strolls(a, think, linger, 30*sec)})
			}
		}
	}
	return s
}

// pauseTable has such that do not for a shorter time once another host has wanted the key.
func pauseTable() studyTable {
	const think, linger = 50 * ms, 2 * sec
	s := studyTable{name: "pause", head: append([]string{"keys are used", "pause"}, strolledHead...)}
	for _, a := range affinities[1:] {
		for _, pause := range []int64{30 * sec, 5 * sec, sec, 0} {
			given := []string{a.name, span(pause)}
			if pause == 0 {
				pause = -1 // 0 is the default
			}
			s.rows = append(s.rows, studyRow{given, false, strolls(a, think, linger, pause)})
		}
	}
	return s
}
