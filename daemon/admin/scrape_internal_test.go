package admin

import (
	"compress/gzip"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// The answer is the same whether it is compressed or not. It is compressed only for clients that
// accept that.
func TestScrape(t *testing.T) {
	from := prometheus.NewRegistry()
	for _, name := range []string{"one", "two"} {
		from.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "Help."}))
	}
	const one = "# HELP one Help.\n# TYPE one counter\none 0\n"
	const two = "# HELP two Help.\n# TYPE two counter\ntwo 0\n"
	text, protobuf := string(expfmt.FmtText), string(expfmt.FmtProtoDelim)
	for _, c := range []struct {
		query, accept, encoding string
		gzip                    bool
		format, want            string
	}{
		{"", "", "", false, text, one + two},
		{"", "", "deflate, gzip", true, text, one + two},
		{"", "text/html", "br;q=1, gzip;q=0.5", true, text, one + two},
		{"", "", "gzip; q=0, identity", false, text, one + two},
		{"?name[]=two", "", "", false, text, two},
		{"?name[]=two&name[]=three&name[]=one", "", "gzip", true, text, one + two},
		{"", protobuf, "", false, protobuf, ""},
		{"", protobuf + ";q=0.7,text/plain;version=0.0.4;q=0.3", "gzip", true, protobuf, ""},
	} {
		r := httptest.NewRequest("GET", "/metrics"+c.query, nil)
		r.Header.Set("Accept", c.accept)
		r.Header.Set("Accept-Encoding", c.encoding)
		w := httptest.NewRecorder()
		new(Server).scrape(from)(w, r)
		h, body := w.Result().Header, io.Reader(w.Body)
		if got := h.Get("Content-Type"); !strings.HasPrefix(got, c.format) {
			t.Errorf("%+v: format %s", c, got)
		}
		if got := h.Get("Content-Encoding") == "gzip"; got != c.gzip {
			t.Errorf("%+v: compressed: %t", c, got)
		} else if got {
			zr, err := gzip.NewReader(body)
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			body = zr
		}
		got, err := io.ReadAll(body)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if c.format == text && string(got) != c.want {
			t.Errorf("%+v: %s", c, got)
		} else if c.format == protobuf && !strings.Contains(string(got), "\x03one\x12") {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
