package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Outcome is the result that the history of a run shows.
type Outcome struct {
	Operations int // grants
	// grants of permits; grants of several keys together; downgrades
	Permits, Many, Lowered int
	Violations             []Violation
	Modelled
	Guarded
	Forgiven int            // overlaps that the store does not promise to prevent
	Lost     map[string]int // holds that a worker noticed as lost, by reason
	Refusals map[string]int // acquires that were not granted, by code
	Recovery time.Duration  // the longest time from healing until every daemon grants again
	Took     time.Duration
	Kept     string // the directory with the history, if it was kept
}

// bed has what every run needs: daemons, workers, the events that the workers printed, and a
// directory.
type bed struct {
	Setting
	Outcome
	dir string
	rnd *rand.Rand
	t   *tb

	hosts    []*host
	workers  []*worker
	register *Register
	watch    *watch // measures patience; nil for the clock
	forgets  []forget
	cut      map[int][]int64

	failing sync.Mutex // guards Violations until the run has ended
}

func newBed(s Setting, seed uint64) bed {
	return bed{Setting: s, Outcome: Outcome{Lost: map[string]int{}, Refusals: map[string]int{}},
		rnd: rand.New(rand.NewPCG(seed, 1)), cut: map[int][]int64{}}
}

func (c *bed) fail(check, format string, args ...any) {
	c.failing.Lock()
	defer c.failing.Unlock()
	c.Violations = append(c.Violations, Violation{check, fmt.Sprintf(format, args...)})
}

// within creates the run's directory and calls run. All processes have ended when it returns, even
// if run panics.
func (c *bed) within(run func()) {
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
	defer c.end()
	defer func() { c.caught(recover()) }()
	run()
}

// startRegister starts the register, which is the resource that the locks guard.
func (c *bed) startRegister() {
	var err error
	if c.register, err = NewRegister(); err != nil {
		panic(broken{err})
	}
	c.t.Cleanup(c.register.Close)
}

// startWorker starts another worker at a host; worker.ready waits for it. It completes the orders.
func (c *bed) startWorker(kind string, at int, orders Orders) *worker {
	program := c.Programs[kind]
	if len(program) == 0 {
		kind, program = "go", c.Programs["go"]
	}
	orders.Worker, orders.Register, orders.Owners = len(c.workers), c.register.Addr(), ownersEach
	w, err := startWorker(kind, program, orders, at,
		filepath.Join(c.dir, fmt.Sprintf("worker%d-%s.log", orders.Worker, kind)))
	if err != nil {
		panic(broken{err})
	}
	c.workers = append(c.workers, w)
	return w
}

// endWorkers ends all workers, and waits for their last answers.
func (c *bed) endWorkers() {
	for _, w := range c.workers {
		w.bid()
	}
	c.until(patience, func() bool {
		return !slices.ContainsFunc(c.workers, func(w *worker) bool { return !w.ended() })
	})
	for _, w := range c.workers {
		if w.killed == 0 && !w.finish() {
			c.fail("wait", "worker %d (%s) does not end", w.no, w.kind)
		}
	}
}

// nothingLeft waits until no daemon reports a hold or a waiter, on its host or in a store.
func (c *bed) nothingLeft() {
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
		c.fail("left", "%d are left at the end: %s", len(left),
			strings.Join(left[:min(len(left), 5)], "; "))
	}
}

// end ends all processes that still run.
func (c *bed) end() {
	for _, w := range c.workers {
		if !w.ended() {
			w.kill()
		}
		<-w.done
	}
	defer func() { c.caught(recover()) }()
	c.t.end()
}

// caught records what has stopped the run. A panic with any other value is a fault of this program.
func (c *bed) caught(r any) {
	switch b := r.(type) {
	case nil:
	case broken:
		c.fail("broken", "%v", b.error)
	default:
		panic(r)
	}
}

func (c *bed) grants() (n int64) {
	for _, w := range c.workers {
		n += w.held.Load()
	}
	return n
}

func (c *bed) byWorker() (ns []int64) {
	for _, w := range c.workers {
		ns = append(ns, w.held.Load())
	}
	return ns
}

// allServed waits until every running worker has been granted something more.
func (c *bed) allServed() {
	before := c.byWorker()
	if !c.until(patience, func() bool {
		for i, w := range c.workers {
			if i < len(before) && w.killed == 0 && w.held.Load() == before[i] {
				return false
			}
		}
		return true
	}) {
		c.fail("floor", "somebody was granted nothing more when all was healed; by worker %v, then %v",
			before, c.byWorker())
	}
}

func (c *bed) until(most time.Duration, ok func() bool) bool {
	return c.watch.patient(most, ok)
}
