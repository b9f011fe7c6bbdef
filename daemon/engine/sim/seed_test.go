package sim

import (
	"cmp"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds   = flag.Int("seeds", 20, "TestSeeds: how many seeds to run")
	first   = flag.Uint64("first", 1, "TestSeeds: the first of them")
	stop    = flag.Bool("stop", false, "TestSeeds: stop at the first seed that fails")
	only    = flag.String("only", "", "TestSeeds: run only seeds of this store (redis, etcd, embedded, both)")
	oneSeed = flag.Uint64("seed", 0, "TestSeed: the seed to replay")
	minutes = flag.Int("minutes", 10, "simulated minutes of a run")
	lines   = flag.Int("lines", 120, "events to print of the key that a failure concerns")
	plant   = flag.Int("plant", 0, "fail at this event, to see what a failure looks like")
)

const (
	// fewEvents is what a run of 10 minutes has at least.
	fewEvents = 20_000
	// manySeeds have shown everything there is to see.
	manySeeds = 250
)

func length() time.Duration { return time.Duration(*minutes) * time.Minute }

// profileOf is the profile of a run, without its world.
func profileOf(seed uint64) *Profile {
	p := emptyWorld(seed).newProfile(int64(length()))
	return &p
}

func runSeed(seed uint64, keep int) *Report {
	w := newWorld(seed, length(), keep)
	w.plant = *plant
	return w.report(length())
}

// command is how a seed is run once more.
func command(seed uint64) string {
	s := fmt.Sprintf("go test ./daemon/engine/sim -run 'TestSeed$' -v -args -seed=%d -minutes=%d",
		seed, *minutes)
	if *plant > 0 {
		s += fmt.Sprintf(" -plant=%d", *plant)
	}
	return s
}

// replay runs a failing seed again and prints what led to it.
func replay(t *testing.T, seed uint64) *Report {
	t.Helper()
	r := runSeed(seed, *lines)
	t.Logf("seed %d: %v", seed, r.Profile)
	for _, line := range r.Trace {
		t.Log(line)
	}
	if r.Failure != nil {
		t.Errorf("%v\nreplay it: %s", r.Failure, command(seed))
	}
	return r
}

// TestSeed replays one seed, given with -seed.
func TestSeed(t *testing.T) {
	if *oneSeed == 0 {
		t.Skip("for replaying: give it -seed")
	}
	r := replay(t, *oneSeed)
	t.Logf("seed %d: hash %016x, %d events in %v simulated\n%v", r.Seed, r.Hash, r.Events,
		r.Time, &r.Counts)
}

// totals is what many seeds have shown.
type totals struct {
	sync.Mutex
	runs   int
	counts Counts
	events int64
	least  int // events of a run
	time   time.Duration
	failed []*Report
}

func (s *totals) add(t *testing.T, r *Report) (enough bool) {
	s.Lock()
	defer s.Unlock()
	s.runs++
	s.counts.Add(&r.Counts)
	s.events += int64(r.Events)
	s.time += r.Time
	s.least = min(s.least, r.Events)
	if r.Failure != nil {
		s.failed = append(s.failed, r)
	} else if r.Events < fewEvents && *minutes >= 10 {
		t.Errorf("seed %d has %d events only: %v", r.Seed, r.Events, r.Profile)
	}
	return len(s.failed) > 20 || *stop && len(s.failed) > 0
}

// TestSeeds runs many seeds and asks that every check held in each, and that
// together they have shown everything there is to see.
func TestSeeds(t *testing.T) {
	var (
		next  atomic.Uint64
		wg    sync.WaitGroup
		total = totals{least: 1 << 60}
		began = time.Now()
	)
	next.Store(*first)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < *first+uint64(*seeds); seed = next.Add(1) - 1 {
				if *only != "" && !profileOf(seed).has(*only) {
					continue
				}
				if total.add(t, runSeed(seed, 0)) {
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds, %v simulated, %d events (%d or more each), %v", total.runs, total.time,
		total.events, total.least,
		time.Since(began).Round(time.Millisecond))
	t.Logf("\n%v", &total.counts)
	slices.SortFunc(total.failed, func(a, b *Report) int { return cmp.Compare(a.Seed, b.Seed) })
	for _, r := range total.failed {
		t.Errorf("%v", r.Failure)
	}
	if len(total.failed) > 0 {
		replay(t, total.failed[0].Seed)
	} else if *seeds >= manySeeds && *only == "" {
		for _, name := range total.counts.Missing() {
			t.Errorf("never seen in %d seeds: %s", *seeds, name)
		}
	}
}
