// Command storm runs storms until the time is up, and prints a table.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/bench/chaos"
)

func main() {
	chaos.Main()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	minutes := flag.Float64("minutes", 10, "for how long to begin new episodes; one is run at least")
	seed := flag.Uint64("seed", 0, "the first episode's seed, from which the others count up; "+
		"0 chooses one")
	once := flag.Bool("once", false, "run one episode alone")
	first := flag.Bool("stop", false, "end after the first episode with violations")
	length := flag.Duration("length", time.Minute,
		"for how long the operators of an episode are at work")
	bin := flag.String("bin", "bin/locksidecar-race", "the program, built with -race")
	python := flag.String("python", "", "the interpreter for the workers in Python; empty for none")
	java := flag.String("java", "", "the jar of the workers in Java; empty for none")
	keep := flag.String("keep", filepath.Join("results", "storm"), "where what was found is kept")
	out := flag.String("out", "", "add the results to this file, one line of JSON each; "+
		"the table has all results in the file")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64() >> 40
	}
	s, err := chaos.NewSetting(*bin, *python, *java, *keep)
	if err != nil {
		return err
	}
	// After the first signal, the program ends with the present episode.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	end := time.Now().Add(time.Duration(*minutes * float64(time.Minute)))
	var all []chaos.StormResult
	bad := 0
	for n := *seed; ; n++ {
		r := chaos.RunStorm(s, n, *length, chaos.Drills)
		s.Log("%s", r.Tell())
		all = append(all, r)
		if len(r.Violations) > 0 {
			bad++
		}
		if *out != "" {
			if all, err = chaos.AppendStorm(*out, r); err != nil {
				return err
			}
		}
		if *once && r.Discarded == "" || *first && bad > 0 || ctx.Err() != nil || time.Now().After(end) {
			break
		}
	}
	fmt.Println()
	chaos.WriteStorm(os.Stdout, all)
	if bad > 0 {
		return fmt.Errorf("%d episodes have violations; the first seed was %d", bad, *seed)
	}
	return nil
}
