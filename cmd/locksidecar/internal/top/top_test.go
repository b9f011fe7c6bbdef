package top

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal/vt"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func someone(n int) engine.ViewWho {
	return engine.ViewWho{Session: uint64(n), PID: 1000 + n, UID: 33, Client: "worker"}
}

// busy returns a view with n rows in each list.
func busy(n int) *engine.View {
	v := &engine.View{At: noon, Version: "1.2.3", PID: 4711, Up: 3_600_000,
		Totals: engine.ViewTotals{Held: 1_234_567, Waiting: 12, Sessions: 200,
			Lost: 3, Acquires: 1000, Granted: 900, Oldest: 7_380_000},
		Stores: []engine.ViewStore{{Name: "default", Kind: "redis", Safety: "best-effort", Up: true,
			Leases: 5, Renewed: 77, Slack: 19_800}}}
	for i := range n {
		v.Holds = append(v.Holds, engine.ViewHold{Key: fmt.Sprintf("order:%d", i), Mode: "exclusive",
			Owner: 1, Fence: 1838349100376782848,
			ViewWho: someone(i), Held: int64(i) * 1000, Left: 20_000, TTL: 30_000, Waiters: 1})
		behind := someone(i)
		v.Waiters = append(v.Waiters, engine.ViewWaiter{Key: fmt.Sprintf("wanted:%d", i), Mode: "shared",
			ViewWho: someone(i), Waited: 500, Left: -1, Place: 1, Behind: &behind})
		v.Sessions = append(v.Sessions, engine.ViewSession{ViewWho: someone(i), Since: 5000, Holds: 1})
		v.Lost = append(v.Lost, engine.ViewLost{At: noon.Add(-time.Minute),
			Key: fmt.Sprintf("gone:%d", i), Reason: "expired", ViewWho: someone(i)})
	}
	return v
}

// draw shows t on a screen, which must not report a fault.
func draw(t *testing.T, top *Top, w, h int) *vt.Terminal {
	t.Helper()
	lines := top.Frame(w, h, noon)
	if len(lines) > h {
		t.Errorf("%d lines on a screen of %d", len(lines), h)
	}
	screen := vt.New(w, h)
	for i, l := range lines {
		fmt.Fprintf(screen, "\x1b[%d;1H%s", i+1, l)
	}
	if len(screen.Faults) > 0 {
		t.Errorf("%dx%d: %q\n%s", w, h, screen.Faults, screen)
	}
	return screen
}

func sees(t *testing.T, screen fmt.Stringer, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(screen.String(), text) {
			t.Errorf("%q is not on the screen:\n%s", text, screen)
		}
	}
}

func press(top *Top, keys ...terminal.Key) (last Action) {
	for _, k := range keys {
		last = top.Key(k)
	}
	return last
}

func typing(top *Top, s string) {
	for _, r := range s {
		top.Key(terminal.Key(r))
	}
}

func TestAScreenOf80By24HasWhatMatters(t *testing.T) {
	top := &Top{Sort: "age"}
	v := busy(40)
	v.Waiters[1].Client, v.Waiters[1].Behind = "locksidecar lock/sh", nil
	v.Waiters[1].Holder = &protocol.Holder{Kind: protocol.HolderDaemon, Host: "web-3",
		Held: 12_000, UID: -1}
	top.Took(v)
	screen := draw(t, top, 80, 24)
	sees(t, screen, "BEHIND", "1000 worker", "web-3 for 12s", "locksidecar lock/sh")
	sees(t, screen, "locksidecar 1.2.3", "up 1h00m", "held 1,234,567", "waiting 12", "sessions 200",
		"lost 3", "oldest 2h03m",
		"store default, redis, best-effort: up", "slack 19s", "1-11 of 40", "by age", "KEY", "LEFT",
		"order:0 ", "1000", "worker", "wanted:0", "q quit")
	if lines := screen.Lines(); !strings.HasPrefix(lines[23], "q quit") {
		t.Errorf("the last line is %q", lines[23])
	}
	press(top, 'w')
	sees(t, draw(t, top, 80, 24), "wanted:1", "PLACE", "WAITED", "LEFT", "locksidecar lock/sh",
		"web-3 for 12s")

	// Where both the waiter and its holder have long names, the beginnings of both are shown.
	v.Waiters[1].Client, v.Waiters[1].Holder.Host = "locksidecar lock/nightly-report.sh",
		"payments-worker-7d9f8b-xkzq2.example.org"
	sees(t, draw(t, top, 80, 24), "locksidecar lo", "payments-worker")
}

func TestWideScreensShowMore(t *testing.T) {
	top := &Top{Sort: "age"}
	top.Took(busy(1))
	sees(t, draw(t, top, 200, 50), "FENCE", "1838349100376782848", "OWNER", "BEHIND")
	press(top, 'w')
	sees(t, draw(t, top, 110, 50), "MODE", "PID", "CLIENT", "SESSION", "BEHIND")
}

func TestEverySizeIsKept(t *testing.T) {
	v := busy(8)
	long := strings.Repeat("\x1b[31m漢字é\u0301\u202e", 60)
	for i := range v.Holds {
		v.Holds[i].Key, v.Holds[i].Client, v.Holds[i].Held = long, long, 1<<60
		v.Waiters[i].Key, v.Waiters[i].Behind.Client = long, long
		v.Sessions[i].Client, v.Sessions[i].Session, v.Sessions[i].PID = long, 1<<63, 1<<31
		v.Lost[i].Key, v.Lost[i].Reason = long, long
	}
	for i := range 12 {
		v.Stores = append(v.Stores, engine.ViewStore{Name: long, Kind: "redis",
			Error: long, Up: i%2 == 0})
	}
	v.NotReady, v.Version = long, long
	for _, colors := range []bool{false, true} {
		top := &Top{Sort: "age", Colors: colors, Prefix: long}
		top.Took(v)
		for range panes {
			for _, w := range []int{1, 2, 17, 40, 80, 132, 250} {
				for _, h := range []int{1, 2, 7, 16, 24} {
					draw(t, top, w, h)
				}
			}
			press(top, terminal.Tab)
		}
		top.Failed(errors.New(long), noon)
		draw(t, top, 80, 24)
		press(top, '/')
		typing(top, long)
		draw(t, top, 80, 24)
		press(top, terminal.Escape, '?')
		draw(t, top, 40, 10)
	}
}

func TestNothingOfAKeyIsACommand(t *testing.T) {
	v := busy(1)
	v.Holds[0].Key = "a\x1b[2J\u009b31m\rb\nc\u202ed"
	v.Waiters[0].Client = "\x1b]0;title\a"
	v.Waiters[0].Key = "\x1b[2Jw"
	top := &Top{Sort: "age"}
	top.Took(v)
	sees(t, draw(t, top, 80, 24), "a\ufffd[2J\ufffd31m", "\ufffd[2Jw")
	var b strings.Builder
	if err := top.WriteRound(&b); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String(), "\x1b\r\a\u009b\u202e") {
		t.Errorf("%q", b.String())
	}
	sees(t, &b, "held 1,234,567", "exclusive", "WAITED")
}

func TestColumnsStandUnderTheirTitles(t *testing.T) {
	v := busy(2)
	v.Holds[1].Key = "漢字e\u0301"
	top := &Top{Sort: "age"}
	top.Took(v)
	var mode []int
	for _, l := range draw(t, top, 80, 24).Lines() {
		if i := strings.Index(l, "exclusive"); i >= 0 {
			mode = append(mode, terminal.Width(l[:i]))
		}
	}
	if len(mode) != 2 || mode[0] != mode[1] {
		t.Errorf("modes stand at %v", mode)
	}
}

func TestTabGoesThroughTheLists(t *testing.T) {
	top := &Top{Sort: "age"}
	top.Took(busy(3))
	for _, title := range []string{"HELD", "PLACE", "SINCE", "REASON", "HELD"} {
		sees(t, draw(t, top, 80, 24), title)
		press(top, terminal.Tab)
	}
	press(top, terminal.BackTab, 'w')
	sees(t, draw(t, top, 80, 24), "PLACE")
	press(top, 'w')
	sees(t, draw(t, top, 80, 24), "HELD")
}

func TestScrollingStaysInTheList(t *testing.T) {
	top := &Top{Sort: "age"}
	v := busy(100)
	v.More.Holds = true
	top.Took(v)
	at := func(want string) {
		t.Helper()
		sees(t, draw(t, top, 80, 24), want)
	}
	at("1-11 of 100")
	press(top, terminal.Up)
	at("1-11 of 100")
	press(top, terminal.Down)
	at("2-12 of 100")
	press(top, terminal.PageDown)
	at("13-23 of 100")
	if press(top, terminal.End) != Fetch {
		t.Error("what may be further down is not asked for")
	}
	at("90-100 of 100")
	if q := top.Query(24); q.Limit < 100 {
		t.Errorf("it asks for %d rows only", q.Limit)
	}
	press(top, terminal.PageUp)
	at("79-89 of 100+")
	press(top, terminal.Home)
	at("1-11 of 100")
	press(top, terminal.End)
	top.Took(busy(20)) // the view has fewer rows now
	at("10-20 of 20")
	if press(top, terminal.End) != Show {
		t.Error("what is not there is asked for")
	}
}

func TestKeysChangeTheQuery(t *testing.T) {
	top := &Top{Sort: "age"}
	top.Took(busy(1))
	for _, want := range []string{"key", "left", "waiters", "trouble", "age"} {
		if got := press(top, 's'); got != Fetch || top.Query(24).Sort != want {
			t.Errorf("by %s, want %s", top.Query(24).Sort, want)
		}
	}
	if press(top, '<', '<'); top.Query(24).Sort != "waiters" {
		t.Errorf("by %s", top.Query(24).Sort)
	}
	if press(top, 'r') != Fetch || !top.Query(24).Desc {
		t.Error("r does not reverse")
	}
	sees(t, draw(t, top, 80, 24), "by waiters, reversed")

	press(top, '/')
	typing(top, "qé漢x")
	if press(top, terminal.Backspace); top.Query(24).Prefix != "" {
		t.Error("what is being typed counts already")
	}
	sees(t, draw(t, top, 80, 24), "begin with: qé漢")
	if press(top, terminal.Enter) != Fetch || top.Query(24).Prefix != "qé漢" {
		t.Errorf("prefix %q", top.Query(24).Prefix)
	}
	sees(t, draw(t, top, 80, 24), "keys qé漢…")
	press(top, '/', terminal.EraseLine, 'z', terminal.Escape)
	if top.Query(24).Prefix != "qé漢" {
		t.Error("Escape did not keep the prefix")
	}
	if press(top, '/', terminal.EraseLine, terminal.Enter) != Fetch || top.Query(24).Prefix != "" {
		t.Error("the prefix stays")
	}

	press(top, '?')
	sees(t, draw(t, top, 80, 24), "reverse the order")
	press(top, 'x')
	press(top, 'p')
	sees(t, draw(t, top, 80, 24), "paused")
	if !top.Paused() || press(top, 'p') != Fetch || top.Paused() {
		t.Error("p does not pause and go on")
	}
	if press(top, 'q') != Quit {
		t.Error("q does not quit")
	}
}

func TestRatesAreOfTheTimeBetween(t *testing.T) {
	top := &Top{Sort: "age"}
	v := busy(1)
	top.Took(v)
	sees(t, draw(t, top, 80, 24), "a second: -")
	w := busy(1)
	w.Up += 2000
	w.Totals.Acquires += 5000
	w.Totals.Lost++
	top.Took(w)
	sees(t, draw(t, top, 80, 24), "2,500 acquires", "0 granted", "0.5 lost")
	// Another daemon counts from 0. Its rates come from its own history.
	n := busy(1)
	n.PID, n.Up, n.Totals.Acquires = 5, 10, 3
	n.History = []engine.ViewPoint{{Acquires: 4.5}}
	top.Took(n)
	sees(t, draw(t, top, 80, 24), "4.5 acquires", "0 lost")
}

func TestTheDaemonIsWaitedFor(t *testing.T) {
	top := &Top{Sort: "age"}
	sees(t, draw(t, top, 80, 24), "waiting for the daemon…")
	top.Took(busy(1))
	top.Failed(errors.New("nobody there"), noon.Add(-3*time.Second))
	top.Failed(errors.New("nobody there"), noon)
	sees(t, draw(t, top, 80, 24), "waiting for the daemon… (3.0s) nobody there", "order:0")
	top.Took(busy(1))
	if strings.Contains(draw(t, top, 80, 24).String(), "waiting for") {
		t.Error("it is back, and waited for still")
	}
}

func TestStoresThatAreDownComeFirst(t *testing.T) {
	top := &Top{Sort: "age"}
	v := busy(0)
	for i := range 6 {
		v.Stores = append(v.Stores, engine.ViewStore{Name: fmt.Sprintf("s%d", i), Kind: "etcd",
			Safety: "linearizable", Up: i != 5, Error: "refused"})
	}
	top.Took(v)
	v.Stores[5].Late = 2500
	lines := draw(t, top, 80, 24).Lines()
	for i, want := range []string{"store s4, etcd, linearizable: renewals are 2.5s late   up",
		"store s5, etcd, linearizable: down: refused", "held "} {
		if !strings.HasPrefix(lines[i+1], want) {
			t.Errorf("line %d is %q, not %q", i+1, lines[i+1], want)
		}
	}
	sees(t, draw(t, top, 80, 24), "and 5 more stores")
	var b strings.Builder
	if err := top.WriteRound(&b); err != nil {
		t.Fatal(err)
	}
	sees(t, &b, "store s0", "store s4")
}

func TestTimesAreShort(t *testing.T) {
	for ms, want := range map[int64]string{-1: "-", 0: "0ms", 999: "999ms", 9_949: "9.9s",
		59_999: "59s", 3_599_000: "59m59s", 3_600_000: "1h00m",
		86_400_000: "1d00h", 90_000_000: "1d01h", 1 << 40: "12725d", 86_400_000 * 99_999: "99999d"} {
		if got := Short(ms); got != want || len(got) > 6 {
			t.Errorf("Short(%d) = %q, want %q", ms, got, want)
		}
	}
	if got := Count(1234567); got != "1,234,567" {
		t.Error(got)
	}
}
