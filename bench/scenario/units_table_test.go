package scenario

import (
	"math"
	"strconv"
	"strings"
	"testing"
)

// cutTable cuts a table, which is between <!-- name --> and <!-- end -->, out of text.
func cutTable(t *testing.T, text, name string) (before, lines, after string) {
	t.Helper()
	before, rest, _ := strings.Cut(text, "<!-- "+name+" -->\n")
	lines, after, ok := strings.Cut(rest, "\n<!-- end -->")
	if !ok {
		t.Fatalf("there is no table %s", name)
	}
	return before, lines, after
}

func linesOf(t *testing.T, text, name string) []string {
	t.Helper()
	_, lines, _ := cutTable(t, text, name)
	return strings.Split(lines, "\n")
}

func putLines(t *testing.T, text, name string, lines []string) string {
	t.Helper()
	before, _, after := cutTable(t, text, name)
	return before + "<!-- " + name + " -->\n" + strings.Join(lines, "\n") + "\n<!-- end -->" + after
}

func tableLine(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |" }

func tableTop(head ...string) []string {
	return []string{tableLine(head...), "|" + strings.Repeat("---|", len(head))}
}

// digits rounds v to n significant digits, with commas.
func digits(v float64, n int) string {
	if v == 0 {
		return "0"
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-float64(n-1))
	v = math.Round(v/unit) * unit
	s := strconv.FormatFloat(v, 'f', max(0, int(-math.Round(math.Log10(unit)))), 64)
	whole, part, _ := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if part = strings.TrimRight(part, "0"); part != "" {
		return whole + "." + part
	}
	return whole
}

func count(v float64) string { return digits(v, 2) }

func size(v float64) string {
	if v < 1e9 {
		return digits(v/1e6, 2) + " MB"
	}
	return digits(v/1e9, 2) + " GB"
}
