package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	Seed                   uint64
	Skipped                string // why it was not run, or ""
	Operations             int    // grants
	Permits, Many, Lowered int    // of them: permits, and what was taken together; downgrades
	Fired                  int
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

const (
	hostsEach      = 3
	clientsEach    = 8
	keysEach       = 6
	ownersEach     = 2
	semaphoresEach = 2
	calm           = 1500 * time.Millisecond
	calmFloor      = 60 // grants before the first fault
	modelTime      = 5 * time.Second
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
	cut      map[int][]int64
	spaces   []*namespace
	healed   time.Time // when the last fault began to be undone
}

// Run runs a cell.
func Run(s Setting, what Cell, seed uint64) (r Result) {
	c := &cell{Setting: s, Result: Result{Cell: what, Seed: seed, Lost: map[string]int{}, Refusals: map[string]int{}},
		rnd: rand.New(rand.NewPCG(seed, 1)), doors: map[int][]*faultproxy.Proxy{}, cut: map[int][]int64{}, prefix: "k"}
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
