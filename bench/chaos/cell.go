package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
)

// Lengths are the durations of faults, in TTLs.
var Lengths = []float64{0.5, 1.5, 5}

// Cell is one store, one fault, the target of the fault, and how many TTLs the fault lasts.
type Cell struct {
	Store, Fault, Target string
	Length               float64
}

func (c Cell) String() string {
	return fmt.Sprintf("%s/%s/%s/%v", c.Store, c.Fault, c.Target, c.Length)
}

// ParseCell parses the text that String returns.
func ParseCell(s string) (c Cell, err error) {
	f := strings.Split(s, "/")
	if len(f) == 4 {
		c.Store, c.Fault, c.Target = f[0], f[1], f[2]
		c.Length, err = strconv.ParseFloat(f[3], 64)
	}
	if err != nil || !slices.ContainsFunc(Cells(),
		func(o Cell) bool { o.Length = c.Length; return o == c }) {
		return c, fmt.Errorf("%q is no cell: STORE/FAULT/TARGET/LENGTH", s)
	}
	return c, nil
}

// Cells returns all cells that make sense, in a fixed order.
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

// Setting has the parameters that the cells of a run share.
type Setting struct {
	Bin      string   // the program
	Programs Programs // how to start the workers
	Keep     string   // the directory for histories with violations
	// how often a cell fires its fault; 0 means 3 times, or twice if the fault lasts long
	Fires int
	Log   func(format string, args ...any)
}

// Result is the result of running one cell.
type Result struct {
	Cell
	Seed    uint64
	Skipped string // the reason why the cell was not run, or ""
	Fired   int
	Outcome
}

const (
	hostsEach      = 3
	clientsEach    = 8
	keysEach       = 6
	ownersEach     = 2
	semaphoresEach = 2
	calm           = 1500 * time.Millisecond
	calmFloor      = 60 // minimum of grants before the first fault
	modelTime      = 5 * time.Second
)

// pauses are the longest pauses between the turns of an owner. The seed selects one of them.
var pauses = [...]time.Duration{20 * time.Millisecond, 2 * time.Millisecond}

// kinds are the languages of a cell's clients. Go replaces a language whose program is missing.
var kinds = [clientsEach]string{"go", "python", "java", "go", "go", "python", "go", "java"}

// cell is one run of a Cell.
type cell struct {
	*store
	Cell
	Seed  uint64
	Fired int
	bed
	fault fault

	doors  map[int][]*faultproxy.Proxy // by worker, if clients connect through links of this program
	prefix string
	spaces []*namespace
	healed time.Time // when the last fault began to be undone
}

// Run runs a cell.
func Run(s Setting, what Cell, seed uint64) (r Result) {
	c := &cell{Cell: what, Seed: seed, bed: newBed(s, seed),
		doors: map[int][]*faultproxy.Proxy{}, prefix: "k"}
	for _, f := range faults() {
		if f.name == what.Fault && f.target == what.Target {
			c.fault = f
		}
	}
	if c.fault.apart {
		if why := noNamespaces(); why != "" {
			return Result{Cell: what, Seed: seed, Skipped: why}
		}
	}
	began := time.Now()
	c.within(func() {
		c.begin()
		c.fireAll()
		c.drain()
	})
	c.judge()
	if c.Fired == 0 {
		c.fail("floor", "no fault was fired")
	}
	c.keep(fmt.Sprintf("%s-%s-%s-%v-%d", c.Store, c.Fault, c.Target, c.Length, c.Seed))
	c.Took = time.Since(began).Round(time.Millisecond)
	return Result{Cell: what, Seed: seed, Fired: c.Fired, Outcome: c.Outcome}
}
