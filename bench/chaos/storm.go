package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// StormResult is the result of an episode.
type StormResult struct {
	Seed   uint64
	Stores [2]string
	Hosts  int
	Did    map[string]int // what the operators did, and how often
	Failed map[string]int // takeovers that failed, and moves that were put off; the daemons continued
	Errors int            // log lines of level error, each of them explained
	// Stood describes when the machine stood still. Discarded is the reason why violations do not
	// count; they are in Excused then.
	Stood     []string
	Discarded string
	Excused   []Violation
	Outcome
}

// stormKinds are the stores that have namespaces of their own in a storm. Every daemon also has the
// embedded store.
var stormKinds = []string{"redis", "etcd", "mysql", "zookeeper", "redis-aof", "sentinel", "etcd3",
	"cluster", "redlock"}

// stormStores returns the two stores of an episode. Each kind occurs twice in as many consecutive
// seeds as there are kinds.
func stormStores(seed uint64) [2]string {
	n := uint64(len(stormKinds))
	i, apart := seed%n, 1+seed/n%(n-1)
	return [2]string{stormKinds[i], stormKinds[(i+apart)%n]}
}

// storm is an episode: daemons that share two stores, workers in namespaces that move between the
// stores, and operators.
type storm struct {
	bed
	seed   uint64
	length time.Duration
	drills int
	depots []*depot
	sites  []*site
	rules  *logRules

	// Keys x: move from a store whose fence bases can be raised to one whose bases cannot. Then they
	// have no semaphores, and the daemons' own keys stay where they are. docs/operate/stores.md gives
	// the reason.
	toOrdered bool
	lifted    bool // the daemons' own keys have a fence_epoch, so that they may move to every store

	mu     sync.Mutex
	counts map[string]int // what was done, and how often; guarded by mu
	failed map[string]int // guarded by mu
	deeds  []*deed        // guarded by mu
	forced []forcedHold   // guarded by mu
	all    []*process     // daemons and successors, in the order of their starts; guarded by mu
	epoch  uint64         // the highest fence_epoch of a daemon's own keys; guarded by mu
}

// depot is a store with the record of what was done to it.
type depot struct {
	*store
	kind string
	name string // its name in configurations

	mu       sync.Mutex
	troubles []span // times at which it may not have answered; guarded by mu
}

func (d *depot) trouble() (over func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.troubles = append(d.troubles, span{now(), forever})
	i := len(d.troubles) - 1
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.troubles[i].to = now()
	}
}

// troubled reports whether the store may not have answered between from and now, or had just
// returned.
func (d *depot) troubled(from int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	const after = int64(30 * time.Second)
	return slices.ContainsFunc(d.troubles, func(t span) bool { return t.to > from-after })
}

func (s *storm) troubled(from int64) bool {
	return slices.ContainsFunc(s.depots, func(d *depot) bool { return d.troubled(from) })
}

func (s *storm) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

func (s *storm) put(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[what]++
}

// Drills is how often a long episode repeats reloads and takeovers at its end, to find leaks.
const Drills = 8

// RunStorm runs one episode. Its operators are at work for length. At its end, each daemon is
// reloaded and taken over drills times while nothing else happens. Each daemon must then have no
// more descriptors and goroutines than before. Without drills, they are compared only with their
// numbers at the start of the episode.
func RunStorm(set Setting, seed uint64, length time.Duration, drills int) StormResult {
	s := &storm{bed: newBed(set, seed), seed: seed, length: length, drills: drills,
		rules:  newLogRules(),
		counts: map[string]int{}, failed: map[string]int{}}
	began := time.Now()
	s.watch = newWatch()
	s.within(func() {
		s.begin()
		s.operate()
		s.finish()
	})
	stood := s.watch.end()
	s.clocksSet(stood)
	s.judge()
	s.judgeForced()
	s.judgeLosses()
	errors := s.judgeLogs()
	s.keep(fmt.Sprint("storm-", seed))
	s.Took = time.Since(began).Round(time.Millisecond)
	r := StormResult{Seed: seed, Stores: stormStores(seed), Hosts: len(s.sites), Did: s.counts,
		Failed: s.failed, Errors: errors, Outcome: s.Outcome}
	for _, one := range stood {
		r.Stood = append(r.Stood, one.String())
	}
	if r.Discarded = discards(stood, r.Violations); len(r.Violations) > 0 && r.Discarded != "" {
		r.Violations, r.Excused = nil, r.Violations
	} else {
		r.Discarded = ""
	}
	return r
}

// clocksSet accounts for a wall clock that was set: from then on, stores that use the wall clock
// may have forgotten locks.
func (s *storm) clocksSet(found []standstill) {
	for _, one := range found {
		if one.step == 0 {
			continue
		}
		for _, d := range s.depots {
			if !d.ordered() {
				s.forgot(d, span{one.from, one.to + int64(stormTTL)})
			}
		}
	}
}

// forgot records that a store may have forgotten its keys in a span.
func (s *storm) forgot(d *depot, at span) {
	for _, st := range s.sites {
		for _, prefix := range []string{"x:", "y:", st.own()} {
			if st.had(prefix, at, d.in) {
				s.mu.Lock()
				s.forgets = append(s.forgets, forget{prefix, at})
				s.mu.Unlock()
			}
		}
	}
}

// begin starts all processes, and waits until they work.
func (s *storm) begin() {
	// A successor that a daemon has started becomes a child of this process when the daemon has ended.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(broken{err})
	}
	// Other users need access to the sockets and to the program.
	if err := os.Chmod(s.dir, 0o711); err != nil {
		panic(broken{err})
	}
	s.startRegister()
	for i, kind := range stormStores(s.seed) {
		name := strings.ReplaceAll(kind, "-", "")
		s.depots = append(s.depots, &depot{store: storeKinds[kind].start(s.t), kind: kind,
			name: fmt.Sprint(name, i)})
	}
	s.toOrdered = !s.depots[0].ordered() && s.depots[1].ordered()
	s.lifted, s.epoch = s.seed%3 == 0 && !s.toOrdered, firstLift
	for i := range 2 + int(s.seed%2) {
		s.addSite(i)
	}
	together(s.sites, func(st *site) { st.mu.Lock(); defer st.mu.Unlock(); st.start() })
	s.measureFirst()
	s.addWorkers()
	together(s.workers, (*worker).ready)
	if !s.until(patience, func() bool { return slices.Min(s.byWorker()) > 0 }) {
		s.fail("floor", "a worker was granted nothing before the storm; by worker: %v", s.byWorker())
	}
}

// addWorkers adds workers at each daemon, for each namespace that daemons share and for the
// daemon's own namespace. The keys of an own namespace may move at any time: a daemon alone
// excludes its own clients, however often their keys move.
func (s *storm) addWorkers() {
	kinds := []string{"go", "python", "go", "java", "go", "go"}
	n := 0
	add := func(at int, prefix string) {
		orders := Orders{Socket: s.hosts[at].socket(), Prefix: prefix, Keys: 3, TTL: stormTTL,
			Pause: pauses[(s.seed+uint64(n))%2], Seed: s.seed}
		if s.semaphores(prefix) {
			orders.Semaphores = 1
		}
		s.startWorker(kinds[n%len(kinds)], at, orders)
		n++
	}
	for at := range s.sites {
		add(at, "x:")
		add(at, "y:")
		add(at, s.sites[at].own())
	}
}

// semaphores reports whether there are semaphores with keys that begin with prefix.
func (s *storm) semaphores(prefix string) bool {
	return !slices.ContainsFunc(s.depots, func(d *depot) bool { return d.locks }) &&
		(prefix == "y:" || !s.toOrdered)
}

// operate runs the operators: one for the stores, one that moves keys, and one for each daemon.
func (s *storm) operate() {
	until := time.Now().Add(s.length)
	tasks := []func(){func() { s.tendStores(until) }, func() { s.moveKeys(until) }}
	for _, st := range s.sites {
		tasks = append(tasks, func() { st.operate(until) })
	}
	together(tasks, func(do func()) { do() })
}

// finish heals all faults, waits until every worker is served, ends all processes, and checks what
// is left.
func (s *storm) finish() {
	healed := time.Now()
	s.allServed()
	s.endWorkers()
	for _, st := range s.sites {
		st.mu.Lock()
		defer st.mu.Unlock()
		defer s.doing("reload: drill", st, nil)()
		if !st.reload("settle", func(l *layout) {}, healed) {
			s.fail("recovery", "daemon %d refuses its own configuration when all is healed: %s", st.no,
				tail(st.log()))
		}
	}
	s.nothingLeft()
	together(s.sites, (*site).leakDrill)
	s.nothingLeft()
	for _, st := range s.sites {
		st.stopWith(syscall.SIGTERM, 0)
	}
	s.noResidue()
}

// names returns the names of the stores in configurations. The empty name means the embedded store.
func (s *storm) names() []string {
	all := []string{""}
	for _, d := range s.depots {
		all = append(all, d.name)
	}
	return all
}

// addSite creates a daemon's directory, socket and configuration.
func (s *storm) addSite(no int) {
	h := &host{no: no, dir: filepath.Join(s.dir, fmt.Sprint("daemon", no))}
	h.run, h.bin = filepath.Join(h.dir, "run"), filepath.Join(h.dir, "locksidecar")
	st := &site{host: h, s: s, rnd: rand.New(rand.NewPCG(s.seed, uint64(100+no)))}
	for _, dir := range []string{h.dir, h.run} {
		if err := os.Mkdir(dir, 0o711); err != nil {
			panic(broken{err})
		}
	}
	if err := copyFile(s.Bin, h.bin); err != nil {
		panic(broken{err})
	}
	st.mountSmall()
	a, b := s.depots[0], s.depots[1]
	l := &layout{
		fixed: []string{`upstream: "memory:"`, fmt.Sprint("ttl: ", stormTTL), "socket_mode: 0666",
			fmt.Sprint("host_name: storm-", no)},
		stores: map[string]string{a.name: a.url(a.servers), b.name: b.url(b.servers)},
		rooms: map[string]room{"x:": {store: a.name}, "y:": {store: b.name},
			"u:": {more: []string{"users: [0]"}}, st.own(): {}},
	}
	st.layout = l
	homes := st.homes()
	l.rooms[st.own()] = room{store: homes[len(homes)-1]}
	if s.lifted {
		l.rooms[st.own()] = room{epoch: firstLift}
	}
	l.vary(st.rnd, []string{""})
	st.uses(l, now())
	s.hosts, s.sites = append(s.hosts, h), append(s.sites, st)
	s.t.Cleanup(func() {
		if h.process != nil && !h.ended() {
			h.end(syscall.SIGKILL)
		}
	})
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// summary lists what the operators did, in sorted order.
func summary(counts map[string]int) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%s %d", k, counts[k]))
	}
	return strings.Join(words, ", ")
}

// Tell describes one episode in a few lines.
func (r *StormResult) Tell() string {
	var b strings.Builder
	fmt.Fprintf(&b, "storm %v, %d daemons, seed %d: %.1f s, %d operations, lost %v, refused %v",
		r.Stores, r.Hosts, r.Seed, r.Took.Seconds(), r.Operations, r.Lost, r.Refusals)
	if r.Forgiven > 0 {
		fmt.Fprintf(&b, ", forgiven %d", r.Forgiven)
	}
	if len(r.Stood) > 0 {
		fmt.Fprintf(&b, ", %s", strings.Join(r.Stood, ", "))
	}
	fmt.Fprintf(&b, ", %d lines of level error\n  did: %s", r.Errors, summary(r.Did))
	if len(r.Failed) > 0 {
		fmt.Fprintf(&b, "\n  not done: %s", summary(r.Failed))
	}
	if r.Discarded != "" {
		fmt.Fprintf(&b, "\n  discarded: %s", r.Discarded)
	}
	for _, v := range r.Excused {
		fmt.Fprintf(&b, "\n  excused %v", v)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "\n  VIOLATION %v", v)
	}
	if r.Kept != "" {
		fmt.Fprintf(&b, "\n  kept in %s; again: make storm STORM=\"-seed %d\"", r.Kept, r.Seed)
	}
	return b.String()
}
