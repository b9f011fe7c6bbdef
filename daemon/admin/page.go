package admin

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// The page shows a view as HTML. It is complete without a script; the script keeps it up to date. Keys and client names
// are untrusted text: html/template escapes them, and the policy below allows only scripts from page/.

//go:embed page/page.html page/page.css page/page.js page/icon.svg
var pageFiles embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{"dur": duration, "num": grouped, "marks": marks, "percent": percent, "low": low}).
	ParseFS(pageFiles, "page/page.html"))

const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// pageTypes are the files beside the page itself.
var pageTypes = map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}

func pageHeaders(h http.Header, kind string) {
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

func (a *Server) page(w http.ResponseWriter, r *http.Request) {
	v, err := a.view(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p := page{View: v, Refresh: r.URL.Query().Get("refresh") == "on", LostMost: lostMost, Limits: []int{engine.DefaultViewRows, 200, engine.MaxViewRows}}
	if !slices.Contains(p.Limits, v.Query.Limit) {
		p.Limits = append(p.Limits, v.Query.Limit)
		slices.Sort(p.Limits)
	}
	p.Host, _ = os.Hostname()
	var b bytes.Buffer // so that a slow reader delays nothing else
	if err := pageTemplate.Execute(&b, &p); err != nil {
		a.cfg.Log.Error("page failed", zap.String("event", "page_failed"), zap.Error(err))
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	pageHeaders(w.Header(), "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes())
}

func (a *Server) pageFile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	kind := pageTypes[name]
	b, err := pageFiles.ReadFile("page/" + name)
	if kind == "" || err != nil {
		http.NotFound(w, r)
		return
	}
	pageHeaders(w.Header(), kind)
	_, _ = w.Write(b)
}

// page has the data of the template.
type page struct {
	engine.View
	Host     string
	Refresh  bool // the page reloads itself if scripts are disabled
	Limits   []int
	LostMost int
}

// Link returns the link to the same page with one parameter changed.
func (p *page) Link(name, value string) string { return "./" + encoded(p.values(name, value)) }

// JSON returns the link to the same view as JSON.
func (p *page) JSON() string { return "view.json" + encoded(p.Query.Values()) }

func (p *page) values(name, value string) url.Values {
	v := p.Query.Values()
	if p.Refresh {
		v.Set("refresh", "on")
	}
	if v.Set(name, value); value == "" {
		v.Del(name)
	}
	return v
}

func encoded(v url.Values) string {
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// head is the heading of a column. Sorted is the value of aria-sort.
type head struct{ Name, Href, Sorted string }

// column is a column of a table. sort is one of ViewSorts, or empty; falls is true if that order has the largest values
// first.
type column struct {
	name, sort string
	falls      bool
}

func (p *page) heads(columns ...column) (hs []head) {
	for _, c := range columns {
		h := head{Name: c.name}
		if c.sort != "" {
			v := p.values("sort", c.sort)
			v.Del("desc")
			if c.sort == p.Query.Sort {
				h.Sorted = "ascending"
				if c.falls != p.Query.Desc {
					h.Sorted = "descending"
				}
				if !p.Query.Desc {
					v.Set("desc", "true")
				}
			}
			h.Href = "./" + encoded(v)
		}
		hs = append(hs, h)
	}
	return hs
}

// HoldHeads, WaiterHeads and SessionHeads return the headings of those tables.
func (p *page) HoldHeads() []head {
	return p.heads(column{"Key", "key", false}, column{name: "Holder"}, column{"Held", "age", true}, column{"Left", "left", false},
		column{"Waiters", "waiters", true}, column{name: "Fence"})
}

func (p *page) WaiterHeads() []head {
	return p.heads(column{"Key", "key", false}, column{name: "Who"}, column{"Waited", "age", true}, column{"Gives up in", "left", false},
		column{"Place", "waiters", true}, column{name: "Behind"})
}

func (p *page) SessionHeads() []head {
	return p.heads(column{"Client", "key", false}, column{"Connected for", "age", true}, column{"Holds", "left", true},
		column{"Waits", "waiters", true}, column{name: "Heard of"})
}

// Shown returns a text that says how many rows of a list are shown.
func (p *page) Shown(n int, more bool) string {
	switch {
	case more && p.More.Unseen:
		return fmt.Sprintf("%s of many. There is too much to look at all of it: these are from among the oldest.", grouped(n))
	case more:
		return fmt.Sprintf("The first %s; there are more.", grouped(n))
	case p.More.Unseen:
		return fmt.Sprintf("%s, of what is oldest: there is too much to look at all of it.", grouped(n))
	}
	return ""
}

// Ago returns how long ago t was.
func (p *page) Ago(t time.Time) string { return duration(p.At.Sub(t).Milliseconds()) }

// marks returns the unusual properties of a hold.
func marks(h engine.ViewHold) (marks []string) {
	if h.Mode != "exclusive" {
		marks = append(marks, h.Mode)
	}
	for _, m := range []struct {
		is   bool
		text string
	}{{h.Class != "", h.Class}, {h.Fixed, "fixed"}, {h.Degraded, "degraded"}, {h.Forced, "unlocked by force"}} {
		if m.is {
			marks = append(marks, m.text)
		}
	}
	return marks
}

// percent returns how much of its TTL a hold has left.
func percent(h engine.ViewHold) int64 { return max(0, min(100, h.Left*100/max(1, h.TTL))) }

// low reports whether the hold should have been renewed by now.
func low(h engine.ViewHold) bool { return percent(h) < 25 && !h.Fixed && !h.Forced }

// figure is a number of the header with its history.
type figure struct {
	Name, Value string
	Bad         bool
	Line        *line
}

// line is a small line chart, 120 by 24.
type line struct{ Points, Says string }

// Figures returns the figures of the header.
func (p *page) Figures() []figure {
	last := engine.ViewPoint{Slack: -1}
	if n := len(p.History); n > 0 {
		last = p.History[n-1]
	}
	t := &p.Totals
	rate := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	return []figure{
		{"Held", grouped(t.Held), false, p.line(func(h *engine.ViewPoint) float64 { return float64(h.Held) })},
		{"Waiting", grouped(t.Waiting), false, p.line(func(h *engine.ViewPoint) float64 { return float64(h.Waiting) })},
		{"Sessions", grouped(t.Sessions), false, p.line(func(h *engine.ViewPoint) float64 { return float64(h.Sessions) })},
		{"Acquires a second", rate(last.Acquires), false, p.line(func(h *engine.ViewPoint) float64 { return h.Acquires })},
		{"Lost, in all", grouped(t.Lost), t.Lost > 0, p.line(func(h *engine.ViewPoint) float64 { return h.Lost })},
		{"Left at renewal", duration(last.Slack), false, p.line(func(h *engine.ViewPoint) float64 { return float64(max(0, h.Slack)) / 1000 })},
		{"Oldest hold", duration(t.Oldest), false, nil},
	}
}

// line returns the chart of one number's history; nil while there is none.
func (p *page) line(of func(*engine.ViewPoint) float64) *line {
	if len(p.History) < 2 {
		return nil
	}
	const width, height, edge = 120.0, 22.0, 1.0
	top := 0.0
	for i := range p.History {
		top = max(top, of(&p.History[i]))
	}
	var b strings.Builder
	for i := range p.History {
		y := height
		if top > 0 {
			y -= of(&p.History[i]) / top * (height - edge)
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", float64(i)*width/(pointMost-1), y+edge)
	}
	over := p.History[len(p.History)-1].At.Sub(p.History[0].At)
	return &line{b.String(), fmt.Sprintf("over %s: at most %.4g, now %.4g", duration(over.Milliseconds()), top, of(&p.History[len(p.History)-1]))}
}

// duration formats milliseconds for readers.
func duration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case ms < 0:
		return "–"
	case d < time.Second:
		return fmt.Sprintf("%d ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days %d h", int(d.Hours())/24, int(d.Hours())%24)
}

// grouped formats an integer with commas: 1,234,567.
func grouped(n any) string {
	s := fmt.Sprint(n)
	from := 0
	if strings.HasPrefix(s, "-") {
		from = 1
	}
	for i := len(s) - 3; i > from; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
