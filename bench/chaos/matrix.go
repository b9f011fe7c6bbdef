package chaos

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Row is all runs of a store, a fault and its target.
type Row struct {
	Store, Fault, Target string
	Lengths              []float64 // that were run
	Runs, Skipped        int
	Operations, Fired    int
	Violations           int
	Unknown              int     // partitions that porcupine did not decide
	Forgiven             int     // overlaps that the store does not promise to prevent
	UnfencedLost         float64 // percent of writes without a fence
	Recovery             time.Duration
}

// Matrix puts results together.
func Matrix(rs []Result) (rows []Row) {
	type id struct{ store, fault, target string }
	type sums struct {
		Row
		plain, lost int
	}
	all := map[id]*sums{}
	for _, r := range rs {
		k := id{r.Store, r.Fault, r.Target}
		s := all[k]
		if s == nil {
			s = &sums{Row: Row{Store: r.Store, Fault: r.Fault, Target: r.Target}}
			all[k] = s
		}
		if r.Skipped != "" {
			s.Skipped++
			continue
		}
		if !slices.Contains(s.Lengths, r.Length) {
			s.Lengths = append(s.Lengths, r.Length)
			slices.Sort(s.Lengths)
		}
		s.Runs++
		s.Operations += r.Operations
		s.Fired += r.Fired
		s.Violations += len(r.Violations)
		s.Unknown += r.Unknown
		s.Forgiven += r.Forgiven
		s.plain += r.Plain
		s.lost += r.PlainLost
		s.Recovery = max(s.Recovery, r.Recovery)
	}
	for s := range maps.Values(all) {
		if s.plain > 0 {
			s.UnfencedLost = 100 * float64(s.lost) / float64(s.plain)
		}
		rows = append(rows, s.Row)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Store, b.Store), cmp.Compare(a.Target, b.Target), cmp.Compare(a.Fault, b.Fault))
	})
	return rows
}

// WriteMatrix writes it as a table in Markdown.
func WriteMatrix(out io.Writer, rows []Row) {
	fmt.Fprintln(out, "| store | fault | of | TTLs | runs | operations | faults | violations | undecided | forgiven | unfenced lost | recovery |")
	fmt.Fprintln(out, "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, r := range rows {
		runs := fmt.Sprint(r.Runs)
		if r.Skipped > 0 {
			runs += fmt.Sprintf(" (%d skipped)", r.Skipped)
		}
		var lengths []string
		for _, l := range r.Lengths {
			lengths = append(lengths, fmt.Sprint(l))
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %d | %d | %d | %d | %d | %.2f %% | %.2f s |\n", r.Store, r.Fault, r.Target, strings.Join(lengths, ", "),
			runs, r.Operations, r.Fired, r.Violations, r.Unknown, r.Forgiven, r.UnfencedLost, r.Recovery.Seconds())
	}
}

// WriteJSON writes the results one by one, and the matrix.
func WriteJSON(out io.Writer, rs []Result) error {
	e := json.NewEncoder(out)
	e.SetIndent("", " ")
	return e.Encode(map[string]any{"matrix": Matrix(rs), "runs": rs})
}

// Tell is one run in a line, and a line for each violation.
func (r *Result) Tell() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-36v seed %-20d", r.Cell, r.Seed)
	if r.Skipped != "" {
		return b.String() + " skipped: " + r.Skipped
	}
	fmt.Fprintf(&b, " %5.1f s %5d operations, %d faults, recovery %.2f s, writes %d refused %d", r.Took.Seconds(), r.Operations, r.Fired, r.Recovery.Seconds(), r.Accepted, r.Refused)
	if r.PlainLost > 0 {
		fmt.Fprintf(&b, ", unfenced lost %d of %d", r.PlainLost, r.Plain)
	}
	if r.Unknown > 0 {
		fmt.Fprintf(&b, ", undecided %d of %d", r.Unknown, r.Unknown+r.OK+r.Illegal)
	}
	if r.Forgiven > 0 {
		fmt.Fprintf(&b, ", forgiven %d", r.Forgiven)
	}
	for _, words := range []map[string]int{r.Lost, r.Refusals} {
		if len(words) > 0 {
			fmt.Fprintf(&b, " %v", words)
		}
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "\n  VIOLATION %v", v)
	}
	if r.Kept != "" {
		fmt.Fprintf(&b, "\n  kept in %s; again: -cell %v -seed %d", r.Kept, r.Cell, r.Seed)
	}
	return b.String()
}
