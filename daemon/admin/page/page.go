package page

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

//go:generate go run github.com/a-h/templ/cmd/templ@v0.3.1100 generate -f page.templ

//go:embed page.css page.js icon.svg
var files embed.FS

// Policy is the Content-Security-Policy of the page and its files.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// types has the files beside the page itself.
var types = map[string]string{"page.css": "text/css; charset=utf-8",
	"page.js":  "text/javascript; charset=utf-8",
	"icon.svg": "image/svg+xml"}

// File returns a file beside the page and its content type, which is empty if there is no such
// file.
func File(name string) (text []byte, kind string) {
	if kind = types[name]; kind == "" {
		return nil, ""
	}
	text, _ = files.ReadFile(name) // the file is embedded
	return text, kind
}

// Page is what the page shows: all locks, or the lock of the query's key.
type Page struct {
	engine.View
	Host    string
	Refresh bool          // the page reloads itself if scripts are disabled
	MaxLost int           // the length of the list of losses
	Every   time.Duration // between two points of the history
	Points  int           // the number of points that the history keeps
}

// DefaultSort is the order of the page unless its address has another.
const DefaultSort = engine.ViewTrouble

// HTML returns the page.
func (p *Page) HTML() ([]byte, error) {
	var b bytes.Buffer
	err := document(p).Render(context.Background(), &b)
	return b.Bytes(), err
}

func (p *Page) title() string {
	s := grouped(p.Totals.Held) + " held, " + grouped(p.Totals.Waiting) +
		" waiting – locksidecar on " + p.Host
	if list := p.problems(); list[0].Severity == critical {
		s = "⚠ " + s
	}
	return s
}

func (p *Page) ready() problem {
	if p.NotReady != "" {
		return problem{Severity: critical, Title: "Not ready"}
	}
	return problem{Severity: good, Title: "Ready"}
}

func (p *Page) refresh() part {
	if p.Refresh {
		return part{Text: "Stop refreshing", Href: p.link("refresh", "")}
	}
	return part{Text: "Refresh every 5 seconds", Href: p.link("refresh", "on")}
}

// link returns the link to the same page with one parameter changed.
func (p *Page) link(name, value string) string { return "./" + encoded(p.values(name, value)) }

// keyLink returns the link to the page of a key.
func (p *Page) keyLink(key string) string {
	v := url.Values{"key": {key}}
	if p.Refresh {
		v.Set("refresh", "on")
	}
	return "./" + encoded(v)
}

// json returns the link to the same view as JSON.
func (p *Page) json() string { return "view.json" + encoded(p.Query.Values()) }

func (p *Page) values(name, value string) url.Values {
	v := p.Query.Values()
	v.Set("sort", p.Query.Sort)
	if p.Refresh {
		v.Set("refresh", "on")
	}
	v.Set(name, value)
	for name := range v {
		if v.Get(name) == "" || name == "sort" && v.Get(name) == DefaultSort {
			v.Del(name)
		}
	}
	return v
}

func encoded(v url.Values) string {
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// choice is a list to choose from in the form.
type choice struct {
	Name, Label, Value string
	Options            []option
}

type option struct{ Value, Text string }

func (p *Page) selects() []choice {
	rows := choice{Name: "limit", Label: "Rows", Value: strconv.Itoa(p.Query.Limit)}
	limits := []int{engine.DefaultViewRows, 200, engine.MaxViewRows}
	if !slices.Contains(limits, p.Query.Limit) {
		limits = append(limits, p.Query.Limit)
		slices.Sort(limits)
	}
	for _, n := range limits {
		rows.Options = append(rows.Options, option{strconv.Itoa(n), grouped(n)})
	}
	space := choice{Name: "prefix", Label: "Namespace", Value: p.Query.Prefix,
		Options: []option{{"", "All"}}}
	known := p.Query.Prefix == ""
	for i := range p.Namespaces {
		if of := p.Namespaces[i].Prefix; of != "" {
			space.Options = append(space.Options, option{of, of})
			known = known || of == p.Query.Prefix
		}
	}
	if !known {
		space.Options = append(space.Options, option{p.Query.Prefix, p.Query.Prefix})
	}
	if len(space.Options) == 1 {
		return []choice{rows}
	}
	return []choice{space, rows}
}

// hidden returns the parameters that the form keeps.
func (p *Page) hidden() (list []option) {
	if p.Query.Sort != DefaultSort {
		list = append(list, option{"sort", p.Query.Sort})
	}
	if p.Query.Desc {
		list = append(list, option{"desc", "true"})
	}
	if p.Refresh {
		list = append(list, option{"refresh", "on"})
	}
	return list
}

func (p *Page) filtered() bool { return p.Query.Prefix != "" || p.Query.Search != "" }

// all returns the link to the page without a filter.
func (p *Page) all() string {
	v := p.values("prefix", "")
	v.Del("search")
	return "./" + encoded(v)
}

// shown returns a text that says how many rows of a list are shown.
func (p *Page) shown(n int, more bool) string {
	switch {
	case more && p.More.Unseen:
		return fmt.Sprintf("%s of many, from among the oldest: there are too many to examine all.",
			grouped(n))
	case more:
		return fmt.Sprintf("The first %s; there are more.", grouped(n))
	case p.More.Unseen:
		return fmt.Sprintf("%s of the oldest: there are too many to examine all.", grouped(n))
	}
	return ""
}
