package page

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// chart is a line chart of one number's history, in a box of 320 by 112.
type chart struct {
	Says       string // for those who do not see it
	Grid       []mark // horizontal lines with their values
	Times      []mark
	Line, Area string
	Bands      []mark // show their values when the pointer is on them
}

// mark is a text at a place of a chart.
type mark struct{ At, Width, Anchor, Text string }

// The plot in the box of a chart.
const (
	plotLeft, plotRight = 40.0, 316.0
	plotTop, plotBottom = 6.0, 92.0
	perBand             = 5 // points
)

// chart draws a number. unit formats a value. It returns nil while there are less than two points.
func (p *Page) chart(of func(*engine.ViewPoint) float64, unit func(float64) string) *chart {
	n := len(p.History)
	if n < 2 {
		return nil
	}
	top := 0.0
	for i := range p.History {
		top = max(top, of(&p.History[i]))
	}
	c := &chart{Says: fmt.Sprintf("over %s: at most %s, now %s",
		duration(p.History[n-1].At.Sub(p.History[0].At).Milliseconds()), unit(top),
		unit(of(&p.History[n-1])))}
	top = nice(top)
	x := func(back float64) float64 { return plotRight - back*(plotRight-plotLeft)/float64(p.Points-1) }
	y := func(v float64) string { return at(plotBottom - v/top*(plotBottom-plotTop)) }
	for _, v := range [...]float64{0, top / 2, top} {
		c.Grid = append(c.Grid, mark{At: y(v), Text: unit(v)})
	}
	window := p.Every * time.Duration(p.Points)
	c.Times = []mark{{At: at(plotLeft), Anchor: "start",
		Text: duration(window.Milliseconds()) + " ago"}, {At: at(plotRight), Anchor: "end", Text: "now"}}
	var b strings.Builder
	for i := range p.History {
		b.WriteString(at(x(float64(n-1-i))) + "," + y(of(&p.History[i])) + " ")
	}
	c.Line = b.String()
	c.Area = at(x(float64(n-1))) + "," + at(plotBottom) + " " + c.Line + at(plotRight) +
		"," + at(plotBottom)
	for to := n; to > 0; to -= perBand {
		c.Bands = append(c.Bands, p.band(max(0, to-perBand), to, x, of, unit))
	}
	return c
}

// band describes the points in a range of indexes.
func (p *Page) band(from, to int, x func(float64) float64, of func(*engine.ViewPoint) float64,
	unit func(float64) string) mark {
	least, most := math.Inf(1), math.Inf(-1)
	for i := from; i < to; i++ {
		least, most = min(least, of(&p.History[i])), max(most, of(&p.History[i]))
	}
	text := unit(most)
	if least := unit(least); least != text {
		text = least + " to " + text
	}
	n := len(p.History)
	left, right := max(plotLeft, x(float64(n-from)-0.5)), min(plotRight, x(float64(n-to)-0.5))
	return mark{At: at(left), Width: at(right - left),
		Text: p.History[to-1].At.UTC().Format("15:04:05 UTC: ") + text}
}

// at formats a coordinate.
func at(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// nice returns the next value from v on whose half is a round number.
func nice(v float64) float64 {
	if v <= 0 {
		return 2
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 4, 6, 8} {
		if v <= n*unit {
			return n * unit
		}
	}
	return 10 * unit
}

// decimal formats a number of a chart: 1.2k for 1,234.
func decimal(v float64) string {
	for _, s := range []struct {
		from float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= s.from {
			return strconv.FormatFloat(v/s.from, 'g', 3, 64) + s.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func seconds(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) + "\u00a0s" }

// figure is a number of the page with its history.
type figure struct {
	Name, Value, Class string
	Chart              *chart
}

func (p *Page) figures() []figure {
	last := engine.ViewPoint{Slack: -1}
	if n := len(p.History); n > 0 {
		last = p.History[n-1]
	}
	t := &p.Totals
	lost := ""
	if t.Lost > 0 {
		lost = "lost"
	}
	return []figure{
		{"Held", grouped(t.Held), "wide", p.chart(func(h *engine.ViewPoint) float64 { return float64(h.Held) }, decimal)},
		{"Waiting", grouped(t.Waiting), "wide", p.chart(func(h *engine.ViewPoint) float64 { return float64(h.Waiting) }, decimal)},
		{"Acquires a second", strconv.FormatFloat(last.Acquires, 'f', 1, 64), "wide",
			p.chart(func(h *engine.ViewPoint) float64 { return h.Acquires }, decimal)},
		{"Left at renewal", duration(last.Slack), "wide",
			p.chart(func(h *engine.ViewPoint) float64 { return float64(max(0, h.Slack)) / 1000 }, seconds)},
		{"Sessions", grouped(t.Sessions), "", nil},
		{"Oldest hold", duration(t.Oldest), "", nil},
		{"Handoffs, in all", grouped(t.Handoffs), "", nil},
		{"Lost, in all", grouped(t.Lost), lost, nil},
	}
}
