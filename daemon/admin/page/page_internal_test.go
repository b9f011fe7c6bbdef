package page

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

func TestHistoryIsDrawn(t *testing.T) {
	h := []engine.ViewPoint{{At: time.Unix(0, 0), Held: 10, Sessions: 1},
		{At: time.Unix(5, 0), Held: 10, Sessions: 1}}
	p := Page{View: engine.View{History: h}, Points: 120, Every: 5 * time.Second}
	p.Totals.Held = 1_234_567
	f := p.figures()[0]
	if f.Value != "1,234,567" || f.Chart == nil || f.Chart.Line != "313.7,6.0 316.0,6.0 " ||
		!strings.HasSuffix(f.Chart.Says, ": at most 10, now 10") || len(f.Chart.Grid) != 3 ||
		f.Chart.Grid[1] != (mark{At: "49.0", Text: "5"}) ||
		len(f.Chart.Bands) != 1 || f.Chart.Bands[0].Text != "00:00:05 UTC: 10" {
		t.Errorf("%+v %+v", f, f.Chart)
	}
	b, err := p.HTML()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), `<polyline points="`); n != 4 ||
		strings.Contains(string(b), "NaN") {
		t.Errorf("%d lines", n)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for ms, want := range map[int64]string{-1: "–", 0: "0 ms", 999: "999 ms", 1500: "1.5 s",
		59_940: "59.9 s", 60_000: "1 min", 61_000: "1 min 1 s", 3_660_000: "1 h 1 min",
		49 * 3_600_000: "2 days 1 h"} {
		if got := strings.ReplaceAll(duration(ms), "\u00a0", " "); got != want {
			t.Errorf("%d: %q, want %q", ms, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000",
		-100: "-100", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func client(n int) engine.ViewWho {
	return engine.ViewWho{Session: uint64(n), PID: n, UID: -1, Client: "worker"}
}

func TestProblemsComeFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	p := Page{View: engine.View{At: now, NotReady: "no store",
		Stores: []engine.ViewStore{{Name: "slow", Up: true, Late: 2000},
			{Name: "gone", Error: "refused"}},
		Holds: []engine.ViewHold{{Key: "late", Fence: 1, TTL: 30_000, Left: 2000},
			{Key: "fixed", Fixed: true, Fence: 1, TTL: 30_000, Left: 2000},
			{Key: "alone", Degraded: true, TTL: 30_000, Left: 20_000},
			{Key: "fine", Fence: 1, TTL: 30_000, Left: 20_000}},
		Waiters: []engine.ViewWaiter{{Key: "short", Place: 1, Waited: 100},
			{Key: "long", Place: 2, Waited: 6000}, {Key: "long", Place: 1, Waited: 61_000}},
		Lost: []engine.ViewLost{{At: now.Add(-time.Minute), Key: "lost", Reason: "expired"},
			{At: now.Add(-time.Hour), Key: "older"}}}}
	var got []string
	for _, x := range p.problems() {
		got = append(got, strings.ReplaceAll(x.Severity+"/"+x.Key+"/"+x.Title+"/"+x.Detail,
			"\u00a0", " "))
	}
	want := []string{"critical//Renewals at store slow are 2.0 s late/",
		"critical//Store gone is down/refused",
		"critical/late/the renewal is late: 2.0 s of 30.0 s left/held by unnamed client",
		"warning/alone/granted by this host alone, without a fence/held by unnamed client",
		"warning//1 lock lost in the last 10 min/the last: lost, expired",
		"warning/long/2 waiters, the first for 1 min 1 s/"}
	if !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	if list := (&Page{}).problems(); len(list) != 1 || list[0].Severity != good {
		t.Errorf("of nothing: %+v", list)
	}
}

func TestHoldersAreGroupedByKey(t *testing.T) {
	var p Page
	for i := range 5 {
		p.Holds = append(p.Holds, engine.ViewHold{Key: "k", Mode: permit, Fence: 1838349100376782848,
			ViewWho: client(i)},
			engine.ViewHold{Key: "k", Mode: "exclusive", ViewWho: client(i)})
	}
	p.Holds[9].Key = "other"
	rows := p.holds().Rows
	if len(rows) != 3 {
		t.Fatalf("%+v", rows)
	}
	said := ""
	for _, x := range rows[0].Cells[1] {
		said += x.Text + " "
	}
	if said != "5 permits: worker · worker · worker and 2 more " {
		t.Errorf("%q", said)
	}
	if f := rows[0].Cells[5][0]; f.Text != "…782848" || f.Title != "1838349100376782848" {
		t.Errorf("%+v", f)
	}
}

func TestAnAxisHasRoundNumbers(t *testing.T) {
	for v, want := range map[float64]float64{0: 2, 0.3: 0.4, 1: 1, 7: 8, 9: 10, 10: 10, 11: 20, 25: 40,
		1_000_001: 2_000_000} {
		if got := nice(v); got != want {
			t.Errorf("%v: %v, want %v", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.5: "0.5", 20: "20", 1500: "1.5k",
		2_000_000: "2M"} {
		if got := decimal(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}
