package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// AppendStorm adds a result to a file, and returns all results in the file.
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

// deedKinds are the columns for what operators did. The names of the deeds in a column begin with
// one of its prefixes.
var deedKinds = []struct {
	name     string
	prefixes []string
}{
	{"reloads", []string{"reload", "move"}},
	{"takeovers", []string{"takeover"}},
	{"ends", []string{"drain", "end at once", "kill"}},
	{"unlocks", []string{"unlock"}},
	{"commands", []string{"look", "command", "second", "other users"}},
	{"full disks", []string{"full disk"}},
	{"store faults", []string{"store"}},
}

// stormRow is one line of the table by store.
type stormRow struct {
	episodes, discarded, grants, violations, undecided, forgiven int

	took  time.Duration
	deeds [7]int // in the order of deedKinds
}

func (o *stormRow) add(r *StormResult) {
	o.episodes++
	o.discarded += one(r.Discarded != "")
	o.took += r.Took
	o.grants += r.Operations
	o.violations += len(r.Violations)
	o.undecided += r.Unknown
	o.forgiven += r.Forgiven
	for what, n := range r.Did {
		for i, k := range deedKinds {
			if slices.ContainsFunc(k.prefixes, func(p string) bool { return strings.HasPrefix(what, p) }) {
				o.deeds[i] += n
			}
		}
	}
}

// WriteStorm writes two tables in Markdown: one by store, and one of what the operators did.
func WriteStorm(out io.Writer, rs []StormResult) {
	rows := map[string]*stormRow{}
	did, failed := map[string]int{}, map[string]int{}
	var whole stormRow
	for i := range rs {
		r := &rs[i]
		for _, name := range r.Stores {
			if rows[name] == nil {
				rows[name] = &stormRow{}
			}
			rows[name].add(r)
		}
		whole.add(r)
		for k, n := range r.Did {
			did[k] += n
		}
		for k, n := range r.Failed {
			failed[k] += n
		}
	}
	fmt.Fprint(out, "| store | episodes | seconds |")
	for _, k := range deedKinds {
		fmt.Fprintf(out, " %s |", k.name)
	}
	fmt.Fprintln(out, " grants | violations | undecided | forgiven | discarded |")
	fmt.Fprintf(out, "|---|%s\n", strings.Repeat("--:|", 7+len(deedKinds)))
	line := func(name string, r *stormRow) {
		fmt.Fprintf(out, "| %s | %d | %.0f |", name, r.episodes, r.took.Seconds())
		for _, n := range r.deeds {
			fmt.Fprintf(out, " %d |", n)
		}
		fmt.Fprintf(out, " %d | %d | %d | %d | %d |\n", r.grants, r.violations, r.undecided,
			r.forgiven, r.discarded)
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
