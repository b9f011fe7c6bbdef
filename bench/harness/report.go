package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Metrics has the results of one round of one row, by column.
type Metrics map[string]float64

// Report has the results of a run of the benchmarks.
type Report struct {
	Machine Machine
	Began   time.Time
	Took    time.Duration
	Short   bool // too short to be quoted
	Rows    []*Row
	Checks  []Check
	Plots   []Plot   `json:",omitempty"`
	Faults  []string // faults that have nothing to do with speed, such as overlaps and errors
	Notes   []string
}

// Row is one thing that is measured once per round.
type Row struct {
	Scene, Name string
	Rounds      []Metrics
}

// Spread is a median with its range.
type Spread struct{ Median, Min, Max float64 }

// Check compares a measured value with its target.
type Check struct {
	Name   string
	Value  Spread
	Rounds int     // 0 if it was not measured
	AtMost bool    // the target is a maximum instead of a minimum
	Target float64 // 0 if there is no target, and the value is only for comparison
	Goal   float64 `json:",omitempty"` // a more ambitious target; 0 for none
	OK     bool
}

func spread(vs []float64) (s Spread) {
	if len(vs) == 0 {
		return s
	}
	vs = slices.Sorted(slices.Values(vs))
	n := len(vs)
	return Spread{(vs[(n-1)/2] + vs[n/2]) / 2, vs[0], vs[n-1]}
}

// Add adds one round of a row.
func (r *Report) Add(scene, name string, m Metrics) {
	row := r.row(scene, name)
	if row == nil {
		row = &Row{Scene: scene, Name: name}
		r.Rows = append(r.Rows, row)
	}
	row.Rounds = append(row.Rounds, m)
}

func (r *Report) row(scene, name string) *Row {
	for _, row := range r.Rows {
		if row.Scene == scene && row.Name == name {
			return row
		}
	}
	return nil
}

// Values returns a column of a row, round by round.
func (r *Report) Values(scene, name, column string) (vs []float64) {
	if row := r.row(scene, name); row != nil {
		for _, m := range row.Rounds {
			if v, ok := m[column]; ok {
				vs = append(vs, v)
			}
		}
	}
	return vs
}

// Ratio returns row a's column divided by row b's, round by round. What the machine does to one row
// in a round, it does to the other as well.
func (r *Report) Ratio(scene, a, b, column string) []float64 {
	return Quotients(r.Values(scene, a, column), r.Values(scene, b, column))
}

// Quotients divides x by y, round by round.
func Quotients(x, y []float64) (vs []float64) {
	for i := range min(len(x), len(y)) {
		if y[i] != 0 {
			vs = append(vs, x[i]/y[i])
		}
	}
	return vs
}

// Best returns, for each round, the best value that any of the rows has in a column. better selects
// one of two values.
func (r *Report) Best(scene string, rows []string, column string,
	better func(a, b float64) float64) (best []float64) {
	for _, name := range rows {
		for i, v := range r.Values(scene, name, column) {
			if i == len(best) {
				best = append(best, v)
			}
			best[i] = better(best[i], v)
		}
	}
	return best
}

// AtLeast checks that the median of values reaches target. goal is a more ambitious target, or 0
// for none.
func (r *Report) AtLeast(name string, values []float64, target, goal float64) {
	s := spread(values)
	r.Checks = append(r.Checks, Check{Name: name, Value: s, Rounds: len(values),
		Target: target, Goal: goal,
		OK: len(values) > 0 && s.Median >= target})
}

// AtMost checks that the median of values does not exceed target.
func (r *Report) AtMost(name string, values []float64, target float64) {
	s := spread(values)
	r.Checks = append(r.Checks, Check{Name: name, Value: s, Rounds: len(values), AtMost: true,
		Target: target,
		OK:     len(values) > 0 && s.Median <= target})
}

// Limit shows what is possible, in comparison with the target.
func (r *Report) Limit(name string, values []float64) {
	r.Checks = append(r.Checks, Check{Name: name, Value: spread(values),
		Rounds: len(values), OK: true})
}

// Fault records something that is wrong, whatever the speed.
func (r *Report) Fault(format string, a ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, a...))
}

// Note records something that a reader should know.
func (r *Report) Note(format string, a ...any) {
	r.Notes = append(r.Notes,
		fmt.Sprintf(format, a...))
}

// busyMachine is the share of the machine, in percent, above which other programs distort the
// results.
const busyMachine = 5

// NoteOthers adds a note if other programs were busy during the run.
func (r *Report) NoteOthers() {
	var all []float64
	for _, row := range r.Rows {
		all = append(all, r.Values(row.Scene, row.Name, othersColumn)...)
	}
	if s := spread(all); s.Median > busyMachine {
		r.Note("Other programs used %.0f %% of the machine meanwhile (median of all rows; %.0f–%.0f). "+
			"Do not quote this run.", s.Median, s.Min, s.Max)
	}
}

// Save writes results.json, results.md and its pictures into dir.
func (r *Report) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	p, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(p, '\n'), 0o644); err != nil {
		return err
	}
	if err := r.savePlots(dir); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "results.md"), []byte(r.Markdown()), 0o644)
}

// Markdown returns the report as text for people.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\n%s, in %s.\n", r.Began.UTC().Format("2006-01-02 15:04 UTC"),
		r.Took.Round(time.Second))
	fmt.Fprintf(&b, "%s\n", r.Machine)
	if r.Short {
		b.WriteString("\nA short run: one round, windows too small to be quoted.\n")
	}
	if len(r.Faults) > 0 {
		b.WriteString("\n## Faults\n\n")
		for _, f := range r.Faults {
			fmt.Fprintf(&b, "* %s\n", f)
		}
	}
	if len(r.Checks) > 0 {
		b.WriteString("\n## What was asked for\n\n" +
			"Medians and ranges over the rounds; ratios are taken within each round.\n\n")
		b.WriteString("| what | measured | range | asked | goal | |\n|---|---|---|---|---|---|\n")
		for _, c := range r.Checks {
			b.WriteString(c.markdown())
		}
	}
	for i, row := range r.Rows {
		if i == 0 || r.Rows[i-1].Scene != row.Scene {
			r.scene(&b, row.Scene)
		}
	}
	if len(r.Notes) > 0 {
		b.WriteString("\n## Notes\n\n")
		for _, n := range r.Notes {
			fmt.Fprintf(&b, "* %s\n", n)
		}
	}
	return b.String()
}

func (c Check) markdown() string {
	asked, goal, said := "≥ "+number(c.Target), "", "met"
	if c.AtMost {
		asked = "≤ " + number(c.Target)
	}
	if c.Target == 0 {
		asked, said = "", "limit"
	}
	if c.Goal != 0 {
		goal = number(c.Goal)
	}
	switch {
	case c.Rounds == 0:
		return fmt.Sprintf("| %s | | | %s | %s | not measured |\n", cell(c.Name), asked, goal)
	case !c.OK:
		said = "**missed**"
	}
	return fmt.Sprintf("| %s | %s | %s–%s | %s | %s | %s |\n", cell(c.Name), number(c.Value.Median),
		number(c.Value.Min), number(c.Value.Max), asked, goal, said)
}

// columns is the order in which columns are shown. Other columns follow by name.
var columns = []string{"ops_s", "handoffs_s", "p50_us", "p99_us", "p999_us", "max_us",
	"client_cpu_us_op", "server_cpu_us_op", "store_cpu_us_op", "redis_cpu_us_op", "redis_calls_op",
	"redis_calls_handoff", "store_conns", "jain"}

// scene writes the table of one scene. Its first column also has a range.
func (r *Report) scene(b *strings.Builder, scene string) {
	var rows []*Row
	seen := map[string]bool{}
	for _, row := range r.Rows {
		if row.Scene == scene {
			rows = append(rows, row)
			for _, m := range row.Rounds {
				for k := range m {
					seen[k] = true
				}
			}
		}
	}
	var cols []string
	for _, k := range columns {
		if seen[k] {
			cols = append(cols, k)
			delete(seen, k)
		}
	}
	var rest []string
	for k := range seen {
		rest = append(rest, k)
	}
	slices.Sort(rest)
	cols = append(cols, rest...)
	fmt.Fprintf(b, "\n## %s\n\n", scene)
	for _, p := range r.Plots {
		if p.Scene == scene {
			fmt.Fprintf(b, "![%s](%s)\n\n", p.Title, p.file())
		}
	}
	b.WriteString("| row | rounds |")
	for i, k := range cols {
		fmt.Fprintf(b, " %s |", k)
		if i == 0 {
			b.WriteString(" range |")
		}
	}
	b.WriteString("\n|" + strings.Repeat("---|", len(cols)+3) + "\n")
	for _, row := range rows {
		fmt.Fprintf(b, "| %s | %d |", cell(row.Name), len(row.Rounds))
		for i, k := range cols {
			vs := r.Values(scene, row.Name, k)
			s := spread(vs)
			text, span := "", ""
			if len(vs) > 0 {
				text, span = number(s.Median), number(s.Min)+"–"+number(s.Max)
			}
			fmt.Fprintf(b, " %s |", text)
			if i == 0 {
				fmt.Fprintf(b, " %s |", span)
			}
		}
		b.WriteString("\n")
	}
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// number formats v with at least three digits.
func number(v float64) string {
	switch a := max(v, -v); {
	case a == 0:
		return "0"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.4f", v)
}
