package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// NewSetting names the program and the workers. This program itself is the worker in Go. python and
// java may be empty.
func NewSetting(bin, python, java, keep string) (s Setting, err error) {
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	if bin, err = filepath.Abs(bin); err == nil {
		_, err = os.Stat(bin)
	}
	if err != nil {
		return s, fmt.Errorf("the program is needed: %w", err)
	}
	root, err := testserver.SourceRoot()
	if err != nil {
		return s, err
	}
	s = Setting{Bin: bin, Keep: keep, Programs: Programs{"go": {self}},
		Log: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }}
	if python != "" {
		s.Programs["python"] = []string{python, filepath.Join(root, "bench", "chaos",
			"workers", "python", "worker.py")}
	}
	if java != "" {
		s.Programs["java"] = []string{"java", "-XX:+UseSerialGC", "-Xmx64m", "-Xshare:auto",
			"-XX:TieredStopAtLevel=1", "-jar", java}
	}
	return s, nil
}

// NewFirst separates the cells that are not in earlier from the cells that are.
func NewFirst(cells []Cell, earlier []Result) [][]Cell {
	had := map[Cell]bool{}
	for _, r := range earlier {
		had[r.Cell] = true
	}
	parts := make([][]Cell, 2)
	for _, c := range cells {
		i := 0
		if had[c] {
			i = 1
		}
		parts[i] = append(parts[i], c)
	}
	return slices.DeleteFunc(parts, func(p []Cell) bool { return len(p) == 0 })
}

// RunFor runs cells until the time is up, at least one. It runs the parts one after the other, each
// in a random order, and then begins again. Each cell has a seed of its own, which is drawn from
// seed. If there is only one cell, its seed is seed itself. RunFor also ends when ctx ends.
func RunFor(ctx context.Context, s Setting, parts [][]Cell, seed uint64, most time.Duration,
	only bool) (rs []Result) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	end := time.Now().Add(most)
	for len(parts) > 0 {
		for _, cells := range parts {
			for _, i := range rnd.Perm(len(cells)) {
				own := rnd.Uint64() >> 1
				if only {
					own = seed
				}
				r := Run(s, cells[i], own)
				s.Log("%s", r.Tell())
				if rs = append(rs, r); only || time.Now().After(end) || ctx.Err() != nil {
					return rs
				}
			}
		}
	}
	return rs
}
