package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
)

// Lengths are for how long faults last, in TTLs.
var Lengths = []float64{0.5, 1.5, 5}

// Cell is one store, one fault, whom it is for, and how many TTLs it lasts.
type Cell struct {
	Store, Fault, Target string
	Length               float64
}

func (c Cell) String() string {
	return fmt.Sprintf("%s/%s/%s/%v", c.Store, c.Fault, c.Target, c.Length)
}

// ParseCell reads what String writes.
func ParseCell(s string) (c Cell, err error) {
	f := strings.Split(s, "/")
	if len(f) == 4 {
		c.Store, c.Fault, c.Target = f[0], f[1], f[2]
		c.Length, err = strconv.ParseFloat(f[3], 64)
	}
	if err != nil || !slices.ContainsFunc(Cells(), func(o Cell) bool { o.Length = c.Length; return o == c }) {
		return c, fmt.Errorf("%q is no cell: STORE/FAULT/TARGET/LENGTH", s)
	}
	return c, nil
}

// Cells are all that make sense, in a fixed order.
func Cells() (all []Cell) {
	for _, name := range slices.Sorted(maps.Keys(storeKinds)) {
		for _, f := range faults() {
			if !f.possible(storeKinds[name]) {
				continue
			}
			for _, l := range Lengths {
				all = append(all, Cell{name, f.name, f.target, l})
			}
		}
	}
	return all
}

// Setting is what cells of a run share.
type Setting struct {
	Bin      string   // the program
	Programs Programs // the workers
	Keep     string   // where histories of violations go
	Fires    int      // how often a cell's fault is fired; 0 is 3 times, or twice if it lasts long
	Log      func(format string, args ...any)
}

// Result is how a cell's run ended.
type Result struct {
	Cell
	Seed       uint64
	Skipped    string // why it was not run, or ""
	Operations int    // grants
	Fired      int
	Violations []Violation
	Modelled
	Guarded
	Forgiven int            // overlaps that the store does not promise to prevent
	Lost     map[string]int // holds noticed as lost, by reason
	Refusals map[string]int // acquires that were not granted, by code
	Recovery time.Duration  // the worst, from healing until every daemon grants again
	Took     time.Duration
	Kept     string // the directory with its history, if it was kept
}

const (
	hostsEach   = 3
	clientsEach = 8
	keysEach    = 4
	ownersEach  = 2
	calm        = 1500 * time.Millisecond
	calmFloor   = 60 // grants before the first fault
	modelTime   = 5 * time.Second
)

// pauses are how long owners rest between turns, at the most: a seed has one of them.
var pauses = [...]time.Duration{20 * time.Millisecond, 2 * time.Millisecond}

// kinds are the languages of a cell's clients; Go stands in where a program is missing.
var kinds = [clientsEach]string{"go", "python", "java", "go", "go", "python", "go", "java"}

// cell is a run of one.
type cell struct {
	*store
	Setting
	Result
	fault fault
	dir   string
	rnd   *rand.Rand
	t     *tb

	hosts    []*host
	workers  []*worker
	doors    map[int][]*faultproxy.Proxy // of each worker, if clients have links of ours
	register *Register
	prefix   string
	forgets  []span
	spaces   []*namespace
	healed   time.Time // when the last fault began to be undone
}

// Run runs a cell.
func Run(s Setting, what Cell, seed uint64) (r Result) {
	c := &cell{Setting: s, Result: Result{Cell: what, Seed: seed, Lost: map[string]int{}, Refusals: map[string]int{}},
		rnd: rand.New(rand.NewPCG(seed, 1)), doors: map[int][]*faultproxy.Proxy{}, prefix: "k"}
	began := time.Now()
	defer func() {
		c.Took = time.Since(began).Round(time.Millisecond)
		r = c.Result
	}()
	for _, f := range faults() {
		if f.name == what.Fault && f.target == what.Target {
			c.fault = f
		}
	}
	if c.fault.apart {
		if why := noNamespaces(); why != "" {
			c.Skipped = why
			return
		}
	}
	c.run()
	return
}

func (c *cell) fail(check, format string, args ...any) {
	c.Violations = append(c.Violations, Violation{check, fmt.Sprintf(format, args...)})
}

// run has clean-ups happen whatever the cell ends with.
func (c *cell) run() {
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		c.fail("broken", "%v", err)
		return
	}
	c.dir = dir
	log, err := os.Create(filepath.Join(dir, "servers.log"))
	if err != nil {
		c.fail("broken", "%v", err)
		return
	}
	defer log.Close()
	c.t = &tb{log: log}
	func() {
		defer c.end()
		defer func() { c.caught(recover()) }()
		c.begin()
		c.fireAll()
		c.drain()
	}()
	c.judge()
	c.keep()
}

// begin starts all, and sees that it works.
func (c *cell) begin() {
	var err error
	if c.register, err = NewRegister(); err != nil {
		panic(broken{err})
	}
	c.t.Cleanup(c.register.Close)
	c.store = storeKinds[c.Store].start(c.t)
	for i := range c.store.hosts {
		c.hosts = append(c.hosts, c.newHost(i))
	}
	together(c.hosts, (*host).start)
	for i := range clientsEach {
		c.addWorker(i % len(c.hosts))
	}
	together(c.workers, (*worker).ready)
	time.Sleep(calm)
	ok := c.until(patience, func() bool {
		return c.grants() >= calmFloor && !slices.ContainsFunc(c.workers, func(w *worker) bool { return w.held.Load() == 0 })
	})
	if !ok {
		c.fail("floor", "%d grants before the first fault; by worker: %v", c.grants(), c.byWorker())
	}
}

// newHost makes one with a link of its own to each of the store's servers.
func (c *cell) newHost(no int) *host {
	h := &host{no: no, bin: c.Bin, dir: filepath.Join(c.dir, fmt.Sprint("daemon", no))}
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		panic(broken{err})
	}
	listen := "127.0.0.1"
	if c.fault.apart {
		ns, err := newNamespace(no)
		if err != nil {
			panic(broken{err})
		}
		c.spaces = append(c.spaces, ns)
		c.t.Cleanup(ns.remove)
		listen, h.inside = ns.outer, ns.inside()
	}
	var addrs []string
	for _, server := range c.servers {
		p, err := faultproxy.TCPOn(listen, server)
		if err != nil {
			panic(broken{err})
		}
		c.t.Cleanup(func() { p.Close() })
		h.links = append(h.links, p)
		addrs = append(addrs, p.Addr())
	}
	h.conf = fmt.Sprintf("upstream: %q\nttl: %v\ndrain: 300ms\n", c.url(addrs), c.ttl)
	h.configure()
	c.t.Cleanup(func() {
		if h.process != nil {
			h.end(syscall.SIGKILL)
		}
	})
	return h
}

// addWorker starts the next one, at a host; see worker.ready.
func (c *cell) addWorker(at int) *worker {
	no := len(c.workers)
	kind := kinds[no%len(kinds)]
	program := c.Programs[kind]
	if len(program) == 0 {
		kind, program = "go", c.Programs["go"]
	}
	orders := Orders{Socket: c.hosts[at].socket(), Register: c.register.Addr(), Worker: no, Prefix: c.prefix,
		Keys: keysEach, Owners: ownersEach, TTL: c.ttl, Pause: pauses[c.Seed%uint64(len(pauses))], Seed: c.Seed}
	if c.fault.clientLinks {
		p, err := faultproxy.Unix(filepath.Join(c.dir, fmt.Sprint("door", no)), orders.Socket)
		if err != nil {
			panic(broken{err})
		}
		c.t.Cleanup(func() { p.Close() })
		c.doors[no] = []*faultproxy.Proxy{p}
		orders.Socket = p.Addr()
	}
	w, err := startWorker(kind, program, orders, at, filepath.Join(c.dir, fmt.Sprintf("worker%d-%s.log", no, kind)))
	if err != nil {
		panic(broken{err})
	}
	c.workers = append(c.workers, w)
	return w
}

// fireAll fires the fault several times, with healing in between.
func (c *cell) fireAll() {
	times := 3
	if c.Length > 2 {
		times = 2
	}
	if c.Fires > 0 {
		times = c.Fires
	}
	for range times {
		d := time.Duration(c.Length * float64(c.ttl))
		c.healed = time.Now()
		c.fault.fire(c, d)
		c.Fired++
		c.recover()
		if c.fault.brief {
			time.Sleep(d)
		}
		time.Sleep(time.Duration(200+c.rnd.IntN(500)) * time.Millisecond)
	}
	before := c.byWorker()
	if !c.until(patience, func() bool {
		for i, w := range c.workers {
			if i < len(before) && w.killed == 0 && w.held.Load() == before[i] {
				return false
			}
		}
		return true
	}) {
		c.fail("floor", "somebody was granted nothing more when all was healed; by worker %v, then %v", before, c.byWorker())
	}
}

// recover waits until every daemon grants again.
func (c *cell) recover() {
	var mu sync.Mutex
	together(c.hosts, func(h *host) {
		err := h.grants("probe", c.healed.Add(patience))
		took := time.Since(c.healed)
		mu.Lock()
		defer mu.Unlock()
		c.Recovery = max(c.Recovery, took)
		if err != nil {
			c.fail("recovery", "daemon %d grants nothing %v after healing: %v", h.no, took, err)
		}
	})
}

// drain has all workers end, and looks at what is left.
func (c *cell) drain() {
	for _, w := range c.workers {
		w.bid()
	}
	end := time.Now().Add(patience)
	for _, w := range c.workers {
		if w.killed == 0 && !w.finish(end) {
			c.fail("wait", "worker %d (%s) does not end", w.no, w.kind)
		}
	}
	var left []string
	if !c.until(patience, func() bool {
		left = nil
		for _, h := range c.hosts {
			rows, err := h.left()
			if err != nil {
				rows = []string{err.Error()}
			}
			left = append(left, rows...)
		}
		return len(left) == 0
	}) {
		c.fail("left", "%d are left at the end: %s", len(left), strings.Join(left[:min(len(left), 5)], "; "))
	}
	for _, h := range c.hosts {
		if !h.end(syscall.SIGTERM) {
			c.fail("wait", "daemon %d does not end", h.no)
		}
	}
}

// end ends whatever still runs.
func (c *cell) end() {
	for _, w := range c.workers {
		if !w.ended() {
			w.process.end(syscall.SIGKILL)
		}
		<-w.done
	}
	defer func() { c.caught(recover()) }()
	c.t.end()
}

// caught notes what has kept the cell from going on; other panics are ours.
func (c *cell) caught(r any) {
	switch b := r.(type) {
	case nil:
	case broken:
		c.fail("broken", "%v", b.error)
	default:
		panic(r)
	}
}

func (c *cell) grants() (n int64) {
	for _, w := range c.workers {
		n += w.held.Load()
	}
	return n
}

func (c *cell) byWorker() (ns []int64) {
	for _, w := range c.workers {
		ns = append(ns, w.held.Load())
	}
	return ns
}

func (c *cell) until(most time.Duration, ok func() bool) bool {
	for end := time.Now().Add(most); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// last lets a fault last; what comes after it is healing.
func (c *cell) last(d time.Duration) {
	time.Sleep(d)
	c.healed = time.Now()
}

func (c *cell) someHost() *host { return c.hosts[c.rnd.IntN(len(c.hosts))] }

// someWorkers are one to three of those that run.
func (c *cell) someWorkers() (some []*worker) {
	for _, i := range c.rnd.Perm(len(c.workers)) {
		if w := c.workers[i]; w.killed == 0 && len(some) < 3 {
			some = append(some, w)
		}
	}
	return some[:1+c.rnd.IntN(len(some))]
}

// links are those between a target and what it speaks to.
func (c *cell) links(target string) (all []*faultproxy.Proxy) {
	switch target {
	case atStore:
		for _, h := range c.hosts {
			all = append(all, h.links...)
		}
	case atDaemon:
		all = c.someHost().links
	case atClient:
		for _, w := range c.someWorkers() {
			all = append(all, c.doors[w.no]...)
		}
	}
	return all
}

// crashed is what a program of ours says when it ends as none should.
var crashed = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE|Traceback|Exception in thread).*`)

// judge checks the history.
func (c *cell) judge() {
	h := c.history()
	for _, w := range c.workers {
		if w.err != nil && w.killed == 0 {
			c.fail("broken", "%v", w.err)
		}
	}
	logs, _ := filepath.Glob(filepath.Join(c.dir, "*", "log"))
	more, _ := filepath.Glob(filepath.Join(c.dir, "worker*.log"))
	for _, f := range append(logs, more...) {
		b, _ := os.ReadFile(f)
		if m := crashed.Find(b); m != nil {
			c.fail("crash", "%s: %s", filepath.Base(filepath.Dir(f)), m)
		}
	}
	for _, p := range h.ops() {
		switch {
		case p.granted():
			c.Operations++
		case p.answered > 0:
			c.Refusals[p.result]++
		}
		if p.why != "" {
			c.Lost[p.why]++
		}
	}
	found, forgiven := h.Check()
	c.Forgiven = forgiven
	c.Violations = append(c.Violations, found...)
	c.Modelled, found = h.Model(modelTime)
	c.Violations = append(c.Violations, found...)
	if c.register != nil {
		c.Guarded, found = c.register.Check()
		c.Violations = append(c.Violations, found...)
	}
	if c.Fired == 0 {
		c.fail("floor", "no fault was fired")
	}
}

// together does it to all at once, and passes on what one panics with.
func together[T any](all []T, do func(T)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed any
	for _, one := range all {
		wg.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					mu.Lock()
					failed = r
					mu.Unlock()
				}
			}()
			do(one)
		})
	}
	wg.Wait()
	if failed != nil {
		panic(failed)
	}
}
