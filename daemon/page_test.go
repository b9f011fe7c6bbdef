package daemon_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// page is the page as a browser reads it.
func (h *host) page(query string) *html.Node {
	h.t.Helper()
	r, b := h.get("/"+query, "text/html")
	if r.StatusCode != http.StatusOK {
		h.t.Fatalf("%s: %s", r.Status, b)
	}
	n, err := html.Parse(strings.NewReader(string(b)))
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

func all(n *html.Node, which func(*html.Node) bool) (found []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && which(d) {
			found = append(found, d)
		}
	}
	return found
}

func tag(names ...string) func(*html.Node) bool {
	return func(n *html.Node) bool { return slices.Contains(names, n.Data) }
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func byID(n *html.Node, id string) *html.Node {
	return all(n, func(e *html.Node) bool { return attr(e, "id") == id })[0]
}

func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// rows are the keys, or whatever else heads a row, of a table.
func rows(n *html.Node, table string) (heads []string) {
	for _, tr := range all(byID(n, table+"-rows"), tag("tr")) {
		if b := all(tr, tag("bdi")); len(b) > 0 {
			heads = append(heads, text(b[0]))
		}
	}
	return heads
}

// selected is the chosen value of a list.
func selected(list *html.Node) (value string) {
	for _, o := range all(list, tag("option")) {
		if slices.ContainsFunc(o.Attr, func(a html.Attribute) bool { return a.Key == "selected" }) {
			value = attr(o, "value")
		}
	}
	return value
}

var hostile = []string{
	`<script>document.title='run'</script>`, `"><img src=x onerror=alert(1)>`,
	`' onmouseover='alert(1)`, `</title></svg></table>`,
	`javascript:alert(1)`, `{{.Totals}}`, `&lt;b&gt;`, "\u202eevil",
	strings.Repeat("<", 512), "ключ/鍵",
}

func TestPageEscapesWhatIsNotOurs(t *testing.T) {
	short := hostile[0] + "short"
	h := start(t, nil, func(c *daemon.Config) {
		c.Namespaces = []engine.Namespace{{Store: "store"},
			{Prefix: short, Store: "store", MaxHold: 50 * time.Millisecond}}
	})
	c := h.dial(client.Options{Name: `<b onclick="x()">`,
		Label: `</small><script src=//evil></script>`})
	for _, k := range hostile {
		take(t, c, client.AcquireArgs{Key: k, Owner: 1})
	}
	take(t, c, client.AcquireArgs{Key: short, Owner: 2, Permits: 1})
	h.queue(h.dial(client.Options{Name: hostile[0]}), hostile[0], 1, time.Hour)
	eventually(t, "one is lost", func() bool { return len(h.view(engine.ViewQuery{}).Lost) == 1 })

	for _, query := range []string{"", "?key=" + url.QueryEscape(hostile[1]),
		"?prefix=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", "?sort=key&refresh=on&evil=%3Cscript%3E"} {
		n := h.page(query)
		for _, s := range all(n, tag("script", "style", "link", "img", "iframe", "object", "base", "b")) {
			if src := attr(s, "src") + attr(s, "href"); src != "page/page.js" && src != "page/page.css" &&
				src != "page/icon.svg" && (s.Data != "b" || len(s.Attr) > 0) {
				t.Errorf("%s: <%s %v>", query, s.Data, s.Attr)
			}
		}
		for _, e := range all(n, func(*html.Node) bool { return true }) {
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "style" ||
					strings.Contains(a.Val, "javascript:") {
					t.Errorf("%s: <%s %s=%q>", query, e.Data, a.Key, a.Val)
				}
			}
		}
	}
	n := h.page("")
	if got := rows(n, "holds"); !slices.Equal(got, hostile) {
		t.Errorf("%q", got)
	}
	if got := rows(n, "waiters"); !slices.Equal(got, hostile[:1]) {
		t.Errorf("%q", got)
	}
	if got := rows(n, "lost"); !slices.Equal(got, []string{short}) {
		t.Errorf("%q", got)
	}
	if got := attr(byID(h.page("?search=%22%3E%3Cb%3E"), "search"), "value"); got != `"><b>` {
		t.Errorf("the search shows %q", got)
	}
	if got := selected(byID(h.page("?prefix=%22%3E%3Cb%3E"), "prefix")); got != `"><b>` {
		t.Errorf("the filter shows %q", got)
	}
	if got := text(byID(h.page("?key="+url.QueryEscape(hostile[0])), "h-key")); got != hostile[0] {
		t.Errorf("the key's page is of %q", got)
	}
}

func TestPageLetsOnlyItsOwnRun(t *testing.T) {
	h := start(t, nil, nil)
	for path, kind := range map[string]string{"/": "text/html", "/page/page.js": "text/javascript",
		"/page/page.css": "text/css", "/page/icon.svg": "image/svg+xml"} {
		r, b := h.get(path, "")
		csp := r.Header.Get("Content-Security-Policy")
		if r.StatusCode != http.StatusOK || len(b) == 0 ||
			!strings.HasPrefix(r.Header.Get("Content-Type"), kind) ||
			r.Header.Get("X-Content-Type-Options") != "nosniff" ||
			!strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") ||
			strings.Contains(string(b), "http://") && kind != "image/svg+xml" {
			t.Errorf("%s: %s %v", path, r.Status, r.Header)
		}
	}
	for _, path := range []string{"/page/", "/page/page.html", "/page/..%2fpage.go",
		"/page/none", "/other"} {
		if r, _ := h.get(path, ""); r.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
	if r, b := h.get("/?sort=evil", ""); r.StatusCode != http.StatusBadRequest ||
		!strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("%s %s", r.Status, b)
	}
}

func TestPageFiltersAndSortsWithoutAScript(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{Name: "me"})
	for _, key := range []string{"c", "a", "b", "x:1", "x:2"} {
		take(t, c, client.AcquireArgs{Key: key, Owner: 1, Mode: protocol.Shared})
	}
	if got := rows(h.page("?prefix=x:&sort=key&desc=true"), "holds"); !slices.Equal(got,
		[]string{"x:2", "x:1"}) {
		t.Errorf("%v", got)
	}
	// Each heading leads to its order, and from there to the opposite; the filter stays.
	n := h.page("?prefix=x:&limit=200&refresh=on")
	for step, want := range []string{"ascending", "descending", "ascending"} {
		var head *html.Node
		for _, th := range all(byID(n, "holds"), tag("th")) {
			if text(th) == "Key" {
				head = th
			}
		}
		href := attr(all(head, tag("a"))[0], "href")
		if !strings.Contains(href, "prefix=x%3A") || !strings.Contains(href, "limit=200") ||
			!strings.Contains(href, "refresh=on") {
			t.Errorf("step %d: %s", step, href)
		}
		n = h.page(strings.TrimPrefix(href, "./"))
		if sorted := all(byID(n, "holds"), func(e *html.Node) bool { return attr(e, "aria-sort") == want }); len(sorted) != 1 || text(sorted[0]) != "Key" {
			t.Errorf("step %d: not %s: %v", step, want, sorted)
		}
	}
	hidden := map[string]string{}
	for _, i := range all(all(n, tag("form"))[0], tag("input")) {
		hidden[attr(i, "name")] = attr(i, "value")
	}
	if fmt.Sprint(hidden) != "map[refresh:on search: sort:key]" {
		t.Errorf("%v", hidden)
	}
	if got := selected(byID(n, "prefix")) + " " + selected(byID(n, "limit")); got != "x: 200" {
		t.Errorf("%q", got)
	}
	if got := rows(h.page("?search=:&sort=key"), "holds"); !slices.Equal(got, []string{"x:1", "x:2"}) {
		t.Errorf("%v", got)
	}
	if got := text(byID(h.page("?limit=2"), "holds-more")); got != "The first 2; there are more." {
		t.Errorf("%q", got)
	}
	if got := text(byID(h.page("?prefix=none"), "holds-rows")); got != "Nothing is held under such a key." {
		t.Errorf("%q", got)
	}
}

func TestPageCanBeReadByAll(t *testing.T) {
	h := start(t, nil, nil)
	take(t, h.dial(client.Options{}), client.AcquireArgs{Key: "k", Owner: 1})
	n := h.page("")
	ids := map[string]bool{}
	for _, e := range all(n, func(e *html.Node) bool { return attr(e, "id") != "" }) {
		if ids[attr(e, "id")] {
			t.Errorf("two of id %q", attr(e, "id"))
		}
		ids[attr(e, "id")] = true
	}
	for _, e := range all(n, func(e *html.Node) bool { return attr(e, "aria-labelledby") != "" }) {
		if !ids[attr(e, "aria-labelledby")] {
			t.Errorf("nothing labels <%s>", e.Data)
		}
	}
	labels := map[string]bool{}
	for _, l := range all(n, tag("label")) {
		labels[attr(l, "for")] = true
	}
	for _, e := range all(n, tag("input", "select")) {
		if attr(e, "type") != "hidden" && !labels[attr(e, "id")] {
			t.Errorf("no label for %q", attr(e, "name"))
		}
	}
	for _, th := range all(n, tag("th")) {
		if s := attr(th, "scope"); s != "col" && s != "row" {
			t.Errorf("%q has no scope", text(th))
		}
	}
	if skip := all(n, tag("a"))[0]; attr(skip, "href") != "#holds" || !ids["holds"] {
		t.Error("the first link does not skip to the locks")
	}
	if forms := all(n, tag("form")); len(forms) != 1 || attr(forms[0], "method") != "get" {
		t.Error("a form that changes something")
	}
}

func TestPageByTCPIsForOurOwnNames(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) { c.AdminListen = "127.0.0.1:0" })
	get := func(path, host string) int {
		q, err := http.NewRequest("GET", "http://"+h.d.AdminAddr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			q.Host = host
		}
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		r, err := tr.RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r.StatusCode
	}
	for _, path := range []string{"/", "/view.json", "/page/page.js"} {
		for host, want := range map[string]int{"": http.StatusOK, "localhost:1": http.StatusOK,
			"evil.example": http.StatusMisdirectedRequest} {
			if got := get(path, host); got != want {
				t.Errorf("%s as %q: %d, want %d", path, host, got, want)
			}
		}
	}
	if got := get("/metrics", "some.pod.example"); got != http.StatusOK {
		t.Errorf("metrics: %d", got)
	}
}
