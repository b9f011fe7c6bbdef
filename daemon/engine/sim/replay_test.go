package sim

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSeedIsReplayed runs seeds again: beside others, on more and on fewer
// processors, and with a trace kept.
func TestSeedIsReplayed(t *testing.T) {
	const short = 30 * time.Second
	var want []*Report
	for seed := range uint64(8) {
		want = append(want, Run(1000+seed, short, 0))
	}
	same := func(what string, r *Report) {
		o := want[r.Seed-1000]
		if r.Hash != o.Hash || r.Events != o.Events || r.Counts != o.Counts || r.Time != o.Time {
			t.Errorf("seed %d %s: hash %016x, %d events, and it was %016x, %d", r.Seed, what, r.Hash,
				r.Events, o.Hash, o.Events)
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, procs := range []int{1, 2, 4} {
		runtime.GOMAXPROCS(procs)
		var wg sync.WaitGroup
		for _, o := range want {
			wg.Go(func() { same("beside others", Run(o.Seed, short, 0)) })
		}
		wg.Wait()
	}
	for _, o := range want {
		same("with a trace", Run(o.Seed, short, 50))
	}
}

// TestFailureIsReplayed takes the command that a failure prints at its word.
func TestFailureIsReplayed(t *testing.T) {
	run := func(args ...string) string {
		out, err := exec.Command(os.Args[0], append([]string{"-test.v"}, args...)...).CombinedOutput()
		if _, ok := err.(*exec.ExitError); !ok {
			t.Fatalf("a run with a planted failure ends with %v\n%s", err, out)
		}
		return string(out)
	}
	failure := regexp.MustCompile(`seed 2001: planted: .*`)
	out := run("-test.run=TestSeeds$", "-seeds=1", "-first=2001", "-minutes=1", "-plant=3000")
	was := failure.FindString(out)
	cmd := regexp.MustCompile(`replay it: go test \./daemon/engine/sim -run '(\S+)' -v -args (.*)`).FindStringSubmatch(out)
	if was == "" || cmd == nil {
		t.Fatalf("it prints no failure, or no command:\n%s", out)
	}
	again := run(append([]string{"-test.run=" + cmd[1]}, strings.Fields(cmd[2])...)...)
	if is := failure.FindString(again); is != was {
		t.Errorf("it was %q, and the command shows %q", was, is)
	}
}
