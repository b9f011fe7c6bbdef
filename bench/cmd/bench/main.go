// Command bench measures locksidecar against the limits of the machine and against other lock
// libraries. It does so in one run and in turns, and reports whether the targets are met.
//
//	go run ./bench/cmd/bench                 # everything, some minutes
//	go run ./bench/cmd/bench -short          # under a minute, to see that it works
//	go run ./bench/cmd/bench -only local     # one scene
//
// Results go to -out as results.json and results.md with pictures. The results of a complete run go
// to bench/results, and partial, short or interrupted ones to bench/results/partial. The command
// needs Go, redis-server and, for the other libraries, their modules.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/bench/scenario"
)

func main() {
	harness.Main(load.Program)
	err := run()
	switch {
	case errors.Is(err, errFaults), errors.Is(err, errMissed):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(70)
	}
}

var (
	errFaults = errors.New("something is wrong, whatever the speed")
	errMissed = errors.New("not all that was asked for is met")
)

func run() error {
	out := flag.String("out", "", "directory for results.json, results.md and pictures; "+
		"by default bench/results, or bench/results/partial with -only or -short")
	only := flag.String("only", "", "scenes to run, separated by commas: "+sceneNames())
	short := flag.Bool("short", false, "one round of small windows: shows that it works, not how fast")
	rounds := flag.Int("rounds", 7, "rounds; medians are taken over them")
	window := flag.Duration("window", 1500*time.Millisecond, "measured time of one row in one round")
	soak := flag.Duration("soak", 2*time.Hour, "duration of the scene soak")
	strict := flag.Bool("strict", false, "exit with 1 if a target is missed, "+
		"not only if something is wrong")
	flag.Usage = usage
	flag.Parse()
	scenes, err := choose(*only)
	if err != nil {
		return err
	}
	root, err := sourceRoot()
	if err != nil {
		return err
	}
	// a short path, because a socket's path has at most 108 bytes
	dir, err := os.MkdirTemp("", "locksidecar-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	e := &scenario.Env{
		Ctx: ctx, Root: root, Dir: dir, Short: *short, Rounds: *rounds, Window: *window,
		Warm: *window / 4, Soak: *soak,
		Report: &harness.Report{Machine: harness.DescribeMachine(root), Began: time.Now(), Short: *short},
		Logf:   func(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) },
	}
	if *short {
		e.Rounds, e.Window, e.Warm, e.Soak = 1, 300*time.Millisecond, 100*time.Millisecond,
			scenario.ShortSoak
	}
	for _, s := range scenes {
		if err := s.Run(e); err != nil {
			if ctx.Err() != nil {
				e.Report.Note("The run was interrupted in the scene %s.", s.Name)
				break
			}
			e.Report.Fault("%s: %v", s.Name, err)
			e.Logf("%s: %v", s.Name, err)
		}
	}
	e.Report.NoteOthers()
	e.Report.Took = time.Since(e.Report.Began)
	to := resultsDir(*out, root, *short || *only != "" || ctx.Err() != nil)
	if err := e.Report.Save(to); err != nil {
		return err
	}
	e.Logf("results are in %s", to)
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
	fmt.Print(e.Report.Markdown())
	return verdict(e.Report, *strict)
}

// resultsDir returns the directory for the results. Partial results never replace complete ones,
// unless out says so.
func resultsDir(out, root string, partial bool) string {
	if out != "" {
		return out
	}
	dir := filepath.Join(root, "bench", "results")
	if partial {
		dir = filepath.Join(dir, "partial")
	}
	return dir
}

func verdict(r *harness.Report, strict bool) error {
	if len(r.Faults) > 0 {
		return errFaults
	}
	if strict && slices.ContainsFunc(r.Checks, func(c harness.Check) bool { return !c.OK }) {
		return errMissed
	}
	return nil
}

func usage() {
	w := flag.CommandLine.Output()
	fmt.Fprintf(w, "usage: go run ./bench/cmd/bench [flags]\n\nscenes:\n")
	for _, s := range scenario.Scenes {
		fmt.Fprintf(w, "  %-10s %s\n", s.Name, s.About)
	}
	fmt.Fprintln(w, "\nscenes that run only where -only names them:")
	for _, s := range scenario.Long {
		fmt.Fprintf(w, "  %-10s %s\n", s.Name, s.About)
	}
	fmt.Fprintln(w, "\nflags:")
	flag.PrintDefaults()
}

// named returns all scenes that -only can name.
func named() []scenario.Scene { return slices.Concat(scenario.Scenes, scenario.Long) }

func sceneNames() string {
	var names []string
	for _, s := range named() {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

func choose(only string) ([]scenario.Scene, error) {
	if only == "" {
		return scenario.Scenes, nil
	}
	var chosen []scenario.Scene
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(named(), func(s scenario.Scene) bool {
			return s.Name == strings.TrimSpace(name)
		})
		if i < 0 {
			return nil, fmt.Errorf("no scene %q; there are %s", name, sceneNames())
		}
		chosen = append(chosen, named()[i])
	}
	return chosen, nil
}

// sourceRoot finds the module's directory from the working directory.
func sourceRoot() (string, error) {
	b, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the source: %w", err)
	}
	mod := strings.TrimSpace(string(b))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("run it in the source directory: there is no go.mod here")
	}
	return filepath.Dir(mod), nil
}
