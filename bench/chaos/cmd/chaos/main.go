// Command chaos runs cells in a random order until time is up, and prints a matrix.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
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
	minutes := flag.Float64("minutes", 10, "for how long to begin new cells; one is run at least")
	one := flag.String("cell", "", "run this one alone: STORE/FAULT/TARGET/LENGTH")
	only := flag.String("only", "", "run those that match this expression")
	seed := flag.Uint64("seed", 0, "seed; 0 chooses one")
	bin := flag.String("bin", "bin/locksidecar", "the program")
	python := flag.String("python", "", "the interpreter for the workers in Python; empty for none")
	java := flag.String("java", "", "the jar of the workers in Java; empty for none")
	keep := flag.String("keep", filepath.Join(os.TempDir(), "chaos-kept"), "where histories of violations are kept")
	out := flag.String("out", "", "write matrix.md and matrix.json into this directory")
	list := flag.Bool("list", false, "list the cells")
	flag.Parse()

	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	var cells []chaos.Cell
	for _, c := range chaos.Cells() {
		if match.MatchString(c.String()) {
			cells = append(cells, c)
		}
	}
	if *one != "" {
		c, err := chaos.ParseCell(*one)
		if err != nil {
			return err
		}
		cells = []chaos.Cell{c}
	}
	if *list {
		for _, c := range cells {
			fmt.Println(c)
		}
		return nil
	}
	if *seed == 0 {
		*seed = rand.Uint64() >> 1
	}
	s, err := chaos.NewSetting(*bin, *python, *java, *keep)
	if err != nil {
		return err
	}
	fmt.Printf("seed %d, %d cells\n", *seed, len(cells))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) // it ends after the cell that runs
	defer stop()
	rs := chaos.RunFor(ctx, s, cells, *seed, time.Duration(*minutes*float64(time.Minute)), *one != "")
	fmt.Println()
	chaos.WriteMatrix(os.Stdout, chaos.Matrix(rs))
	if *out != "" {
		if err := write(*out, rs); err != nil {
			return err
		}
	}
	for _, r := range rs {
		if len(r.Violations) > 0 {
			return fmt.Errorf("there were violations; the run's seed was %d", *seed)
		}
	}
	return nil
}

func write(dir string, rs []chaos.Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	md, err := os.Create(filepath.Join(dir, "matrix.md"))
	if err != nil {
		return err
	}
	defer md.Close()
	chaos.WriteMatrix(md, chaos.Matrix(rs))
	js, err := os.Create(filepath.Join(dir, "matrix.json"))
	if err != nil {
		return err
	}
	defer js.Close()
	return chaos.WriteJSON(js, rs)
}
