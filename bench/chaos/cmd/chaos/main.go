// Command chaos runs cells in a random order until the time is up, and prints a matrix.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
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
	keep := flag.String("keep", filepath.Join(os.TempDir(), "chaos-kept"),
		"where histories of violations are kept")
	out := flag.String("out", "", "write matrix.md and matrix.json into this directory")
	with := flag.String("with", "", "matrix.json of earlier runs, separated by commas: "+
		"their cells are run last here, and are in the tables, too")
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
	earlier, err := read(*with)
	if err != nil {
		return err
	}
	if *seed == 0 {
		*seed = rand.Uint64() >> 1
	}
	s, err := chaos.NewSetting(*bin, *python, *java, *keep)
	if err != nil {
		return err
	}
	fmt.Printf("seed %d, %d cells\n", *seed, len(cells))
	// After the first signal, the program ends with the present cell.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	now := chaos.RunFor(ctx, s, chaos.NewFirst(cells, earlier), *seed,
		time.Duration(*minutes*float64(time.Minute)), *one != "")
	rs := append(earlier, now...)
	fmt.Println()
	tables(os.Stdout, rs)
	if *out != "" {
		if err := write(*out, rs); err != nil {
			return err
		}
	}
	for _, r := range now {
		if len(r.Violations) > 0 {
			return fmt.Errorf("there were violations; the run's seed was %d", *seed)
		}
	}
	return nil
}

// read reads the results of earlier runs.
func read(names string) (all []chaos.Result, err error) {
	for name := range strings.SplitSeq(names, ",") {
		if name == "" {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		rs, err := chaos.ReadJSON(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, rs...)
	}
	return all, nil
}

func tables(out io.Writer, rs []chaos.Result) {
	chaos.WriteSummary(out, rs)
	chaos.WriteMatrix(out, chaos.Matrix(rs))
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
	tables(md, rs)
	js, err := os.Create(filepath.Join(dir, "matrix.json"))
	if err != nil {
		return err
	}
	defer js.Close()
	return chaos.WriteJSON(js, rs)
}
