package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
)

// column is one column of a list with rows of type R.
type column[R any] struct {
	title string
	rank  int  // columns of a higher rank are left out first
	min   int  // minimum width
	max   int  // maximum width; 0 for the column that gets the remaining width
	right bool // aligned to the right, for numbers
	text  func(*R) string
	style func(*R) terminal.Style // nil: Plain
}

const (
	gap   = 2  // between two columns
	usual = 2  // columns of a higher rank are shown only if the others have at least
	roomy = 24 // this many columns more than they need
)

// layout returns the width of each column, 0 if it is left out. Together they fill w. If w is 0,
// all columns are shown, each as wide as its content.
func layout[R any](columns []column[R], rows []R, w int) []int {
	widths := make([]int, len(columns))
	if w == 0 {
		for i := range columns {
			widths[i] = natural(&columns[i], rows)
		}
		return widths
	}
	order := make([]int, len(columns))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(columns[a].rank, columns[b].rank)
	})
	left, rest := w+gap, order[0]
	for n, i := range order {
		c := &columns[i]
		need := c.min + gap
		if c.rank > usual {
			need += roomy
		}
		if n > 0 && left < need {
			order = order[:n]
			break
		}
		widths[i] = min(c.min, w)
		left -= widths[i] + gap
		if c.max == 0 {
			rest = i
		}
	}
	for _, i := range order {
		if c := &columns[i]; c.max > 0 {
			more := min(natural(c, rows)-widths[i], c.max-widths[i], left)
			widths[i] += max(0, more)
			left -= max(0, more)
		}
	}
	widths[rest] += max(0, left)
	return widths
}

func natural[R any](c *column[R], rows []R) int {
	n := terminal.Width(c.title)
	for i := range rows {
		n = max(n, terminal.Width(terminal.Clean(c.text(&rows[i]))))
	}
	return n
}

// table returns a line of titles and one line for each row. They have w columns. If w is 0, they
// have any width and no styles.
func table[R any](
	columns []column[R], rows []R, w int, colors bool,
) (titles string, lines []string) {
	widths := layout(columns, rows, w)
	var b strings.Builder
	line := func(text func(c *column[R]) (string, terminal.Style)) string {
		b.Reset()
		at, strange := 0, false
		for i := range columns {
			if widths[i] == 0 {
				continue
			}
			if at > 0 {
				b.WriteString(strings.Repeat(" ", gap))
			}
			if strange && w > 0 { // terminals disagree about the width of the text before this
				b.WriteString(terminal.At(at))
			}
			s, style := text(&columns[i])
			fit := terminal.Fit
			if columns[i].right {
				fit = terminal.FitRight
			}
			b.WriteString(terminal.Paint(colors, style, fit(s, widths[i])))
			at += widths[i] + gap
			strange = strange || strings.ContainsFunc(s, func(r rune) bool { return r > 0x7e })
		}
		if w == 0 {
			return strings.TrimRight(b.String(), " ")
		}
		return b.String()
	}
	titles = line(func(c *column[R]) (string, terminal.Style) { return c.title, terminal.Plain })
	for r := range rows {
		lines = append(lines, line(func(c *column[R]) (string, terminal.Style) {
			style := terminal.Plain
			if c.style != nil && w > 0 {
				style = c.style(&rows[r])
			}
			return terminal.Clean(c.text(&rows[r])), style
		}))
	}
	return titles, lines
}
