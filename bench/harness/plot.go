package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Plot is a picture of a scene's rows for the report. It shows the rate of each row as a bar from
// zero, with the range of the rounds as a whisker. It shows times as points on a logarithmic scale.
// All values are medians of the rounds.
type Plot struct {
	Scene, Title   string
	Rate, RateName string   // the column of the bars, and its name
	TimesName      string   // the name of the columns p50_us, p99_us and p999_us
	Ours, Limits   []string // rows in the style of this product, and of limits
	Leave          []string `json:",omitempty"` // rows that are not drawn
}

// Draw adds a picture to the report. It shows the rows that the scene has in the end.
func (r *Report) Draw(p Plot) { r.Plots = append(r.Plots, p) }

// file returns the picture's file name.
func (p *Plot) file() string { return strings.ReplaceAll(p.Scene, " ", "-") + ".svg" }

var quantileColumns = []string{"p50_us", "p99_us", "p999_us"}

// bar is one row of a picture.
type bar struct {
	name, class string
	rate        Spread
	times       []Spread // in the order of quantileColumns
}

func (r *Report) bars(p *Plot) (bars []bar) {
	for _, row := range r.Rows {
		if row.Scene != p.Scene || slices.Contains(p.Leave, row.Name) {
			continue
		}
		b := bar{name: row.Name, class: "lib", rate: spread(r.Values(p.Scene, row.Name, p.Rate))}
		if slices.Contains(p.Ours, row.Name) {
			b.class = "our"
		} else if slices.Contains(p.Limits, row.Name) {
			b.class = "lim"
		}
		for _, c := range quantileColumns {
			b.times = append(b.times, spread(r.Values(p.Scene, row.Name, c)))
		}
		bars = append(bars, b)
	}
	return bars
}

// Sizes in a picture, in its own units, which are pixels if the picture is not scaled.
const (
	plotWidth  = 880
	plotTop    = 76
	rowHeight  = 24
	nameRight  = 198
	rateLeft   = 208
	rateRight  = 452 // numbers are to the right of it
	timesLeft  = 560
	timesRight = 856
)

// SVG returns the picture. Its background is light or dark, according to the reader's settings.
func (r *Report) SVG(p Plot) string {
	bars := r.bars(&p)
	bottom := plotTop + rowHeight*len(bars)
	c := &canvas{}
	c.text(16, 26, "title", "start", p.Title)
	c.text(rateLeft, 54, "muted", "start", p.RateName)
	c.text(timesLeft, 54, "muted", "start", p.TimesName+":  ●\u00a0p50   ○\u00a0p99   |\u00a0p999")
	rate, times := rateScale(bars), timesScale(bars)
	c.axis(rate, bottom)
	c.axis(times, bottom)
	for i := range bars {
		c.bar(&bars[i], plotTop+rowHeight*i, rate, times)
	}
	said := "Medians of the rounds, with their range."
	if r.Short {
		said = "One short round, not to be quoted."
	}
	foot := bottom + 44
	for _, line := range wrap(r.Machine.String()+" "+said, 140) {
		c.text(16, foot, "foot", "start", line)
		foot += 14
	}
	return fmt.Sprintf(svgHead, plotWidth, foot, plotWidth, foot,
		escape(p.Title)) + c.String() + "</svg>\n"
}

// bar draws one row at y.
func (c *canvas) bar(b *bar, y int, rate, times scale) {
	mid := float64(y) + rowHeight/2
	c.text(nameRight, mid+4, "name "+b.class+"name", "end", b.name)
	c.rect(rateLeft, mid-7, rate.at(b.rate.Median)-rateLeft, 14, b.class)
	c.line(rate.at(b.rate.Min), mid, rate.at(b.rate.Max), mid, "whisker")
	for _, end := range []float64{b.rate.Min, b.rate.Max} {
		c.line(rate.at(end), mid-3, rate.at(end), mid+3, "whisker")
	}
	c.text(rate.at(b.rate.Max)+6, mid+4, "number", "start", thousands(b.rate.Median))
	var at [3]float64
	for i, t := range b.times {
		if t.Median <= 0 {
			return
		}
		at[i] = times.at(t.Median)
	}
	c.line(at[0], mid, at[2], mid, b.class+"line")
	c.circle(at[0], mid, b.class)
	c.circle(at[1], mid, b.class+"ring")
	c.line(at[2], mid-6, at[2], mid+6, b.class+"line")
}

// savePlots writes the pictures into dir.
func (r *Report) savePlots(dir string) error {
	for _, p := range r.Plots {
		if err := os.WriteFile(filepath.Join(dir, p.file()), []byte(r.SVG(p)), 0o644); err != nil {
			return err
		}
	}
	return nil
}
