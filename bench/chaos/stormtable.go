package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"
)

// AppendStorm adds a result to a file, and returns all that are in it.
func AppendStorm(name string, r StormResult) (all []StormResult, err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := json.NewEncoder(f).Encode(r); err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for in := json.NewDecoder(f); ; {
		var one StormResult
		switch err := in.Decode(&one); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, one)
	}
}

// WriteStorm writes two tables in Markdown: by store, and of what the operators did.
func WriteStorm(out io.Writer, rs []StormResult) {
	type row struct {
		episodes, grants, actions, violations, undecided, forgiven, plain, lost int
		took                                                                    time.Duration
	}
	rows := map[string]*row{}
	did, failed := map[string]int{}, map[string]int{}
	var whole row
	for _, r := range rs {
		names := slices.Compact(slices.Sorted(slices.Values(r.Stores[:])))
		if rows[names[0]] == nil {
			rows[names[0]] = &row{}
		}
		for _, name := range append(names, "all") {
			o := rows[name]
			if name == "all" {
				o = &whole
			} else if o == nil {
				o = &row{}
				rows[name] = o
			}
			o.episodes++
			o.grants += r.Operations
			for _, n := range r.Did {
				o.actions += n
			}
			o.violations += len(r.Violations)
			o.undecided += r.Unknown
			o.forgiven += r.Forgiven
			o.took += r.Took
		}
		for k, n := range r.Did {
			did[k] += n
		}
		for k, n := range r.Failed {
			failed[k] += n
		}
	}
	fmt.Fprintln(out, "| store | episodes | minutes | grants | actions | violations | undecided | forgiven |")
	fmt.Fprintln(out, "|---|--:|--:|--:|--:|--:|--:|--:|")
	line := func(name string, r *row) {
		fmt.Fprintf(out, "| %s | %d | %.0f | %d | %d | %d | %d | %d |\n", name, r.episodes, r.took.Minutes(), r.grants, r.actions, r.violations, r.undecided, r.forgiven)
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		line(name, rows[name])
	}
	line("all (an episode has two stores)", &whole)
	fmt.Fprintln(out, "\n| what the operators did | times | the daemon went on |\n|---|--:|--:|")
	for _, what := range slices.Sorted(maps.Keys(did)) {
		n := "-"
		if failed[what] > 0 {
			n = fmt.Sprint(failed[what])
		}
		fmt.Fprintf(out, "| %s | %d | %s |\n", what, did[what], n)
	}
}
