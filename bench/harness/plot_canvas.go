package harness

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
	"time"
)

// svgHead is the beginning of a picture. Its arguments are the width, the height, both again, and
// the title.
const svgHead = `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">
<title>%s</title>
<style>
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#1f2328}
.title{font-size:16px;font-weight:600}.foot{font-size:10px}.ourname{font-weight:600}
.muted,.foot,.tick{fill:#59636e}.tick{font-size:11px}
.number{paint-order:stroke;stroke:#fff;stroke-width:3px}.paper{fill:#fff}.grid{stroke:#d1d9e0}.whisker{stroke:#1f2328;stroke-width:1.3}
.our{fill:#0969da}.lib{fill:#8c959f}.lim{fill:#bf8700}
.ourline,.libline,.limline{stroke-width:2}.ourring,.libring,.limring{fill:#fff;stroke-width:2}
.ourline,.ourring{stroke:#0969da}.libline,.libring{stroke:#8c959f}.limline,.limring{stroke:#bf8700}
@media (prefers-color-scheme:dark){
text{fill:#f0f6fc}.muted,.foot,.tick{fill:#9198a1}.number{stroke:#0d1117}.paper{fill:#0d1117}.grid{stroke:#3d444d}.whisker{stroke:#f0f6fc}
.our{fill:#4493f8}.lib{fill:#818b98}.lim{fill:#d29922}.ourring,.libring,.limring{fill:#0d1117}
.ourline,.ourring{stroke:#4493f8}.libline,.libring{stroke:#818b98}.limline,.limring{stroke:#d29922}
}
</style>
<rect class="paper" width="100%%" height="100%%"/>
`

// canvas is the content of a picture.
type canvas struct{ strings.Builder }

func escape(s string) string { return html.EscapeString(s) }

func (c *canvas) text(x, y any, class, anchor, s string) {
	fmt.Fprintf(c, "<text x=\"%v\" y=\"%v\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, class,
		anchor, escape(s))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(c, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1,
		y1, x2, y2, class)
}

func (c *canvas) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(c, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"/>\n", x, y,
		max(0, w), h, class)
}

func (c *canvas) circle(x, y float64, class string) {
	fmt.Fprintf(c, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"%s\"/>\n", x, y, class)
}

// scale maps values to positions, and has the values that the axis shows.
type scale struct {
	at    func(float64) float64
	ticks []float64
	label func(float64) string
}

// axis draws the lines of a scale, and their labels below bottom.
func (c *canvas) axis(s scale, bottom int) {
	for _, v := range s.ticks {
		c.line(s.at(v), plotTop, s.at(v), float64(bottom), "grid")
		c.text(fmt.Sprintf("%.1f", s.at(v)), bottom+16, "tick", "middle", s.label(v))
	}
}

// rateScale returns a linear scale, from zero to the maximum of all rows.
func rateScale(bars []bar) scale {
	most := 1.0
	for _, b := range bars {
		most = max(most, b.rate.Max)
	}
	s := scale{at: func(v float64) float64 { return rateLeft + (rateRight-rateLeft)*v/most },
		label: thousands}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	switch n := most / step; {
	case n < 2:
		step /= 2
	case n >= 5:
		step *= 2
	}
	for v := 0.0; v <= most; v += step {
		s.ticks = append(s.ticks, v)
	}
	return s
}

// timesScale returns a logarithmic scale in microseconds. Its ends are powers of ten.
func timesScale(bars []bar) scale {
	least, most := math.Inf(1), 0.0
	for _, b := range bars {
		for _, t := range b.times {
			if t.Median > 0 {
				least, most = min(least, t.Median), max(most, t.Median)
			}
		}
	}
	if most == 0 {
		least, most = 1, 10
	}
	from, to := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most))
	to = max(to, from+1)
	s := scale{
		at:    func(v float64) float64 { return timesLeft + (timesRight-timesLeft)*(math.Log10(v)-from)/(to-from) },
		label: func(v float64) string { return time.Duration(math.Round(v * 1000)).String() },
	}
	for e := from; e <= to; e++ {
		s.ticks = append(s.ticks, math.Pow(10, e))
	}
	return s
}

// thousands writes a number in groups of three digits.
func thousands(v float64) string {
	digits := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// wrap breaks a text into lines of about width characters.
func wrap(s string, width int) (lines []string) {
	for word := range strings.FieldsSeq(s) {
		if n := len(lines); n > 0 && len(lines[n-1])+len(word) < width {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
