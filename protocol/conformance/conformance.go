package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"
)

// Options say what is tested and how.
type Options struct {
	Command []string      // the client program and its arguments
	Only    []string      // names of scenarios; all when empty
	Timeout time.Duration // for one scenario: 30 s when 0
	Env     []string      // NAME=VALUE, in addition to the runner's own environment
	Jobs    int           // how many scenarios run at once: at least 4 when 0
	// Impatient gives hungDaemonScenario no more time than the other scenarios.
	Impatient bool
	// Each, when not nil, is called with each result, in the order of the scenarios.
	Each func(Result)
}

// Outcome is how a scenario ended.
type Outcome string

// The outcomes. A skipped scenario has not passed.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Result is a scenario with its outcome.
type Result struct {
	Name    string  `json:"name"`
	Section string  `json:"section"`
	About   string  `json:"about"`
	Outcome Outcome `json:"outcome"`
	// Why says what failed, or which abilities the client lacks.
	Why string `json:"why,omitempty"`
	// Exchange has the last commands, answers and frames before a failure.
	Exchange []string      `json:"exchange,omitempty"`
	Client   string        `json:"client,omitempty"` // the name that the client gives itself
	Time     time.Duration `json:"-"`
	Millis   int64         `json:"ms"`
}

// Scenario tests one thing that a client has to get right.
type Scenario struct {
	Name    string   `json:"name"`
	Section string   `json:"section"` // of PROTOCOL.md
	About   string   `json:"about"`
	Needs   []string `json:"needs,omitempty"` // the scenario is skipped without these abilities
	run     func(t *T)
}

// hungDaemonScenario may take hungDaemonTime longer than the others, because the client waits for
// its own timeout, which its author chooses.
const (
	hungDaemonScenario = "hung-daemon"
	hungDaemonTime     = time.Minute
)

// All returns every scenario, in the order in which they are reported.
func All() []Scenario {
	return slices.Concat(frameScenarios, sessionScenarios, holdScenarios,
		permitScenarios, lossScenarios,
		validityScenarios, requestScenarios, quietScenarios)
}

// Abilities lists the features that a client may leave out, each with its meaning.
var Abilities = [][2]string{
	{"concurrent", "answers commands while earlier ones still wait"},
	{"owners", "several owners in one session"},
	{"reentrant", "an owner may acquire again what it holds, and releases as often"},
	{"shared", "mode shared"},
	{"downgrade", "the command downgrade"},
	{"ttl", "ttl_ms in acquire"},
	{"fixed", "fixed in acquire: a hold that ends by itself; needs ttl"},
	{"renew", "the command renew"},
	{"cancel", "the command cancel; needs concurrent"},
	{"many", "the commands acquire_many and release_many"},
	{"any", "the command acquire_any"},
	{"keep", "keep_ms in acquire, now in release, and the command release_detached"},
	{"permits", "mode permit, and permits, in acquire: a permit of a semaphore"},
	{"events", "reports each lost hold by itself, with a lost event"},
	{"quiet", "quiet in release: the client does not wait for the daemon"},
	{"unlock", "the command force_unlock"},
	{"fork", "the command fork, if its language can fork"},
	{"exec", "programs that it runs inherit descriptors that are not close-on-exec (on the JVM they do not)"},
}

// Run carries out the scenarios and returns their results. It returns an error if it could test
// nothing.
func Run(ctx context.Context, o Options) ([]Result, error) {
	if len(o.Command) == 0 {
		return nil, fmt.Errorf("no client program is named")
	}
	if _, err := exec.LookPath(o.Command[0]); err != nil {
		return nil, fmt.Errorf("the client program: %w", err)
	}
	todo, err := choose(o.Only)
	if err != nil {
		return nil, err
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Jobs == 0 {
		o.Jobs = max(4, runtime.NumCPU())
	}
	dir, err := os.MkdirTemp("", "lsc-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()

	results := make([]chan Result, len(todo))
	next := make(chan int)
	for range o.Jobs {
		go func() {
			for i := range next {
				results[i] <- runOne(ctx, &o, &todo[i], fmt.Sprintf("%s/%d", dir, i))
			}
		}()
	}
	for i := range todo {
		results[i] = make(chan Result, 1)
	}
	go func() {
		for i := range todo {
			next <- i
		}
		close(next)
	}()
	all := make([]Result, len(todo))
	for i := range todo {
		all[i] = <-results[i]
		if o.Each != nil {
			o.Each(all[i])
		}
	}
	return all, nil
}

// choose returns the scenarios with these names.
func choose(names []string) ([]Scenario, error) {
	all := All()
	if len(names) == 0 {
		return all, nil
	}
	var todo []Scenario
	for _, n := range names {
		i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == n })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q; --list shows them", n)
		}
		todo = append(todo, all[i])
	}
	return todo, nil
}

func runOne(ctx context.Context, o *Options, s *Scenario, dir string) (r Result) {
	r = Result{Name: s.Name, Section: s.Section, About: s.About}
	start := time.Now()
	defer func() {
		r.Time = time.Since(start)
		r.Millis = r.Time.Milliseconds()
	}()
	timeout := o.Timeout
	if s.Name == hungDaemonScenario && !o.Impatient {
		timeout += hungDaemonTime
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	t := &T{ctx: ctx, name: s.Name, dir: dir}
	defer t.end()
	r.Outcome, r.Why = t.run(o, s)
	if t.p != nil {
		r.Client = t.p.name()
		if r.Outcome == Failed {
			r.Exchange = t.p.exchange()
		}
	}
	return r
}
