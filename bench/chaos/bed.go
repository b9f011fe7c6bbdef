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

// Outcome is what the history of a run showed.
type Outcome struct {
	Operations             int // grants
	Permits, Many, Lowered int // of them: permits, and what was taken together; downgrades
	Violations             []Violation
	Modelled
	Guarded
	Forgiven int            // overlaps that the store does not promise to prevent
	Lost     map[string]int // holds noticed as lost, by reason
	Refusals map[string]int // acquires that were not granted, by code
	Recovery time.Duration  // the worst, from healing until every daemon grants again
	Took     time.Duration
	Kept     string // the directory with its history, if it was kept
}

// bed is what every run has: daemons, workers, what the workers told, and a directory.
type bed struct {
	Setting
	Outcome
	dir string
	rnd *rand.Rand
	t   *tb

	hosts    []*host
	workers  []*worker
	register *Register
	watch    *watch // nil: patience is measured by the clock
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

// within makes the run's directory and has run happen there. Whatever it ends with, all processes
// end.
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

// startRegister starts what the locks guard.
func (c *bed) startRegister() {
	var err error
	if c.register, err = NewRegister(); err != nil {
		panic(broken{err})
	}
	c.t.Cleanup(c.register.Close)
}

// startWorker starts the next one, at a host; see worker.ready. The orders are completed.
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

// endWorkers has all workers end, and waits for their last answers.
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

// nothingLeft waits until no daemon, and no store as they see it, has anything that is held or
// waited for.
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

// end ends whatever still runs.
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

// caught notes what has kept the run from going on; other panics are ours.
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

// allServed waits until every worker that runs has been granted something more.
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
