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

// Row summarizes all runs with one store, one fault and one target.
type Row struct {
	Store, Fault, Target string
	Lengths              []float64 // the lengths that were run
	Runs, Skipped        int
	Operations, Fired    int
	Violations           int
	Unknown              int     // partitions that porcupine did not decide
	Forgiven             int     // overlaps that the store does not promise to prevent
	UnfencedLost         float64 // percent of writes without a fence
	Recovery             time.Duration
}

// tally adds up the results of a row.
type tally struct {
	Row
	cells       map[Cell]bool
	plain, lost int
}

func (s *tally) add(r *Result) {
	if r.Skipped != "" {
		s.Skipped++
		return
	}
	if !slices.Contains(s.Lengths, r.Length) {
		s.Lengths = append(s.Lengths, r.Length)
		slices.Sort(s.Lengths)
	}
	s.cells[r.Cell] = true
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

// tallies groups results by the part of their cells that group returns. The groups have the order
// of that part.
func tallies(rs []Result, group func(Cell) Cell) (all []*tally) {
	of := map[Cell]*tally{}
	for i := range rs {
		c := group(rs[i].Cell)
		s := of[c]
		if s == nil {
			s = &tally{Row: Row{Store: c.Store, Fault: c.Fault, Target: c.Target}, cells: map[Cell]bool{}}
			of[c] = s
		}
		s.add(&rs[i])
	}
	for s := range maps.Values(of) {
		if s.plain > 0 {
			s.UnfencedLost = 100 * float64(s.lost) / float64(s.plain)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *tally) int {
		return cmp.Or(cmp.Compare(a.Store, b.Store), cmp.Compare(a.Target, b.Target),
			cmp.Compare(a.Fault, b.Fault))
	})
	return all
}

// Matrix returns the rows of all results.
func Matrix(rs []Result) (rows []Row) {
	for _, s := range tallies(rs, func(c Cell) Cell { return Cell{Store: c.Store, Fault: c.Fault, Target: c.Target} }) {
		rows = append(rows, s.Row)
	}
	return rows
}

// WriteSummary writes two tables in Markdown: by store, and by fault.
func WriteSummary(out io.Writer, rs []Result) {
	cells := Cells()
	// one tally, or none if there are no results
	whole := tallies(rs, func(Cell) Cell { return Cell{} })
	for _, by := range []struct {
		name string
		of   func(Cell) string
	}{{"store", func(c Cell) string { return c.Store }},
		{"fault", func(c Cell) string { return c.Fault }}} {
		fmt.Fprintf(out, "| %s | cells | runs | operations | faults | violations | undecided | forgiven | unfenced lost | recovery |\n", by.name)
		fmt.Fprintln(out, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
		line := func(name string, s *tally, of int) {
			fmt.Fprintf(out, "| %s | %d of %d | %d | %d | %d | %d | %d | %d | %.2f %% | %.1f s |\n", name,
				len(s.cells), of, s.Runs, s.Operations, s.Fired,
				s.Violations, s.Unknown, s.Forgiven, s.UnfencedLost, s.Recovery.Seconds())
		}
		for _, s := range tallies(rs, func(c Cell) Cell { return Cell{Store: by.of(c)} }) {
			there := 0
			for _, c := range cells {
				if by.of(c) == s.Store {
					there++
				}
			}
			line(s.Store, s, there)
		}
		for _, s := range whole {
			line("all", s, len(cells))
		}
		fmt.Fprintln(out)
	}
}

// WriteMatrix writes rows as a table in Markdown.
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
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %d | %d | %d | %d | %d | %.2f %% | %.2f s |\n",
			r.Store, r.Fault, r.Target, strings.Join(lengths, ", "),
			runs, r.Operations, r.Fired, r.Violations, r.Unknown, r.Forgiven, r.UnfencedLost,
			r.Recovery.Seconds())
	}
}

// WriteJSON writes each result, and the matrix.
func WriteJSON(out io.Writer, rs []Result) error {
	e := json.NewEncoder(out)
	e.SetIndent("", " ")
	return e.Encode(map[string]any{"matrix": Matrix(rs), "runs": rs})
}

// ReadJSON reads the results that WriteJSON wrote.
func ReadJSON(in io.Reader) ([]Result, error) {
	var all struct {
		Runs []Result `json:"runs"`
	}
	err := json.NewDecoder(in).Decode(&all)
	return all.Runs, err
}

// Tell describes a run in one line, followed by one line for each violation.
func (r *Result) Tell() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-36v seed %-20d", r.Cell, r.Seed)
	if r.Skipped != "" {
		return b.String() + " skipped: " + r.Skipped
	}
	fmt.Fprintf(&b, " %5.1f s %5d operations (%d permits, %d of several, %d downgrades), %d faults, recovery %.2f s, writes %d refused %d", r.Took.Seconds(), r.Operations, r.Permits, r.Many, r.Lowered, r.Fired, r.Recovery.Seconds(), r.Accepted, r.Refused)
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
