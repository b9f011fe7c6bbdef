package admin

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/engine/enginetest"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
)

func TestHistoryIsTakenAndDrawn(t *testing.T) {
	e := enginetest.New(t, renewer.Boottime, upstream.Info{}, 0)
	d := &Viewer{Engine: e.Engine}
	last := d.point(nil)
	if n := len(d.history.series()); n != 0 {
		t.Fatalf("%d points of no time", n)
	}
	e.Lock(t, e.Greet(engine.Unknown, "test", ""), 10)
	last.at = last.at.Add(-5 * time.Second) // as if that were so long ago
	d.point(d.point(last))
	h := d.history.series()
	if len(h) != 2 || h[0].Held != 10 || h[0].Sessions != 1 || h[0].Acquires <= 0 || h[0].Acquires > 2 || h[0].Lost != 0 || h[0].Slack != -1 || h[1].Acquires != 0 {
		t.Errorf("%+v", h)
	}
	p := page{View: engine.View{History: h}}
	p.Totals.Held = 1_234_567
	f := p.Figures()[0]
	if f.Value != "1,234,567" || f.Line == nil || f.Line.Points != "0.0,2.0 1.0,2.0 " || !strings.HasSuffix(f.Line.Says, ": at most 10, now 10") {
		t.Errorf("%+v %+v", f, f.Line)
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, &p); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), `<polyline points="`); n != 6 || strings.Contains(b.String(), "NaN") {
		t.Errorf("%d lines", n)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for ms, want := range map[int64]string{-1: "–", 0: "0 ms", 999: "999 ms", 1500: "1.5 s", 59_940: "59.9 s", 61_000: "1 min 1 s", 3_660_000: "1 h 1 min",
		49 * 3_600_000: "2 days 1 h"} {
		if got := duration(ms); got != want {
			t.Errorf("%d: %q, want %q", ms, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -100: "-100", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
