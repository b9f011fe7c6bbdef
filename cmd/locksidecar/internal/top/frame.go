package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
)

// span is a piece of a line.
type span struct {
	text  string
	style terminal.Style
}

// frame is a screen that is filled from the top. If the width is 0, it is plain text.
type frame struct {
	w, h   int
	colors bool
	lines  []string
}

// line adds a line, which is cut where the screen ends.
func (f *frame) line(spans ...span) {
	var b strings.Builder
	left := f.w
	for _, s := range spans {
		text := terminal.Clean(s.text)
		if f.w == 0 {
			b.WriteString(text)
			continue
		}
		n := terminal.Width(text)
		if n > left {
			text, n = terminal.Fit(text, left), left
		}
		b.WriteString(terminal.Paint(f.colors, s.style, text))
		left -= n
	}
	f.add(b.String())
}

func (f *frame) add(line string) {
	if len(f.lines) < f.h {
		f.lines = append(f.lines, line)
	}
}

// fill adds empty lines until there are n lines.
func (f *frame) fill(n int) {
	for len(f.lines) < n {
		f.lines = append(f.lines, "")
	}
}

// Frame returns the lines for a screen of w columns and h lines: at most h lines, none of which is
// wider than w.
func (t *Top) Frame(w, h int, now time.Time) []string {
	f := &frame{w: w, h: h, colors: t.Colors}
	switch {
	case t.help:
		t.keys(f)
	case t.view == nil:
		f.line(span{"locksidecar top", terminal.Bold})
		t.waiting(f, now)
	default:
		f.h = max(1, h-1) // the last line is for keys
		t.header(f, now)
		t.lists(f)
		f.fill(f.h)
		f.h = h
		t.footer(f)
	}
	return f.lines
}

func (t *Top) waiting(f *frame, now time.Time) {
	if t.failed == nil {
		f.line(span{"waiting for the daemon…", terminal.Plain})
		return
	}
	f.line(span{fmt.Sprintf("waiting for the daemon… (%s) %v",
		Short(now.Sub(t.since).Milliseconds()), t.failed), terminal.Worst})
}

// header shows the state of the daemon and its stores.
func (t *Top) header(f *frame, now time.Time) {
	v := t.view
	state := ""
	if t.paused {
		state = "   paused"
	}
	bad := ""
	if v.NotReady != "" {
		bad = "   not ready: " + v.NotReady
	}
	f.line(span{"locksidecar " + v.Version, terminal.Bold},
		span{text: fmt.Sprintf("   up %s   process %d   %s",
			Short(v.Up), v.PID, v.At.Local().Format(time.TimeOnly))},
		span{state, terminal.Warning}, span{bad, terminal.Worst})
	limit := max(1, min((f.h+1)/8, 6))
	if f.w == 0 {
		limit = len(t.view.Stores)
	}
	trouble, others := t.stores(limit)
	for _, line := range trouble {
		f.line(line...)
	}
	f.line(t.figures()...)
	if t.failed != nil {
		t.waiting(f, now)
	} else {
		f.line(t.perSecond()...)
	}
	for _, line := range others {
		f.line(line...)
	}
}

func (t *Top) figures() []span {
	n := &t.view.Totals
	bad := terminal.Plain
	if n.Lost > 0 {
		bad = terminal.Warning
	}
	oldest := "-"
	if n.Oldest > 0 {
		oldest = Short(n.Oldest)
	}
	return []span{{text: fmt.Sprintf("held %s   waiting %s   sessions %s   ",
		Count(n.Held), Count(n.Waiting), Count(n.Sessions))},
		{"lost " + Count(n.Lost), bad}, {text: "   oldest " + oldest}}
}

func (t *Top) perSecond() []span {
	r := &t.rates
	if !r.known {
		return []span{{"a second: -", terminal.Dim}}
	}
	bad := terminal.Plain
	if r.losses > 0 {
		bad = terminal.Worst
	}
	spans := []span{{text: "a second: " + rate(r.acquires) + " acquires"}}
	if r.granted >= 0 {
		spans = append(spans, span{text: fmt.Sprintf("   %s granted   %s handoffs",
			rate(r.granted), rate(r.handoffs))})
	}
	return append(spans, span{text: "   "}, span{rate(r.losses) + " lost", bad})
}

// lateRenewal is the delay of renewals, in milliseconds, from which on a store counts as in
// trouble.
const lateRenewal = 1000

// stores returns at most n lines: trouble describes the stores in trouble, and others the other
// stores.
func (t *Top) stores(n int) (trouble, others [][]span) {
	for i := range t.view.Stores {
		s := &t.view.Stores[i]
		line := []span{{text: fmt.Sprintf("store %s, %s, %s: ", s.Name, s.Kind, s.Safety)}}
		if !s.Up {
			trouble = append(trouble, append(line, span{"down: " + s.Error, terminal.Worst}))
			continue
		}
		what := fmt.Sprintf("up   leases %s   renewed %s", Count(s.Leases), Count(s.Renewed))
		if s.Slack > 0 {
			what += "   slack " + Short(s.Slack)
		}
		if s.Queued > 0 {
			what += "   queued " + Count(s.Queued)
		}
		if s.Late >= lateRenewal {
			trouble = append(trouble, append(line,
				span{"renewals are " + Short(s.Late) + " late   ", terminal.Worst}, span{text: what}))
			continue
		}
		others = append(others, append(line, span{text: what}))
	}
	more := func(n int, style terminal.Style) []span {
		return []span{{fmt.Sprintf("and %d more stores", n), style}}
	}
	switch all := len(trouble) + len(others); {
	case all <= n:
	case len(trouble) >= n:
		trouble = append(trouble[:n-1], more(all-n+1, terminal.Worst))
		others = nil
	default:
		others = append(others[:n-1-len(trouble)], more(all-n+1, terminal.Dim))
	}
	return trouble, others
}

// lists shows the chosen list. Below the holds, it shows the longest waiters.
func (t *Top) lists(f *frame) {
	left := f.h - len(f.lines)
	below := 0
	if n := len(t.view.Waiters); t.pane == holds && n > 0 && f.h >= 15 {
		below = min(n, max(2, left/4)) + 2
	}
	t.rows = max(1, left-below-2)
	t.first[t.pane] = max(0, min(t.first[t.pane], t.count()-t.rows))
	t.tabs(f)
	t.list(f, t.pane, t.first[t.pane], t.rows)
	if below > 0 {
		f.fill(f.h - below)
		f.line(span{"waiting", terminal.Bold}, span{"  (w: all of them)", terminal.Dim})
		t.list(f, waiters, 0, below-2)
	}
}

// names returns the names of the panes with their numbers of rows.
func (t *Top) names() [panes]string {
	n := &t.view.Totals
	return [panes]string{"holds " + Count(n.Held), "waiters " + Count(n.Waiting),
		"sessions " + Count(n.Sessions), "lost " + Count(n.Lost)}
}

func (t *Top) tabs(f *frame) {
	var spans []span
	for i, name := range t.names() {
		style := terminal.Dim
		if pane(i) == t.pane {
			style = terminal.Reverse
		}
		spans = append(spans, span{" " + name + " ", style})
	}
	if n := t.count(); n > t.rows {
		more := ""
		if t.cut() {
			more = "+"
		}
		spans = append(spans, span{text: fmt.Sprintf("  %d-%d of %d%s", t.first[t.pane]+1,
			t.first[t.pane]+t.rows, n, more)})
	}
	by := "  by " + t.Sort
	if t.Desc {
		by += ", reversed"
	}
	spans = append(spans, span{text: by})
	if t.view.More.Unseen {
		spans = append(spans, span{"  (not all were examined)", terminal.Warning})
	}
	f.line(spans...)
}

func (t *Top) footer(f *frame) {
	switch {
	case t.typing:
		// If the text is too long, its end is shown, because that is being typed.
		text := terminal.Clean(t.typed)
		for terminal.Width(text) > max(0, f.w-30) {
			_, text, _ = strings.Cut(text, string([]rune(text)[:1]))
		}
		f.line(span{"keys that begin with: ", terminal.Bold}, span{text: text},
			span{" ", terminal.Reverse})
	case t.Prefix != "":
		f.line(span{"keys " + t.Prefix + "…", terminal.Bold},
			span{"  q quit  / other keys  ? help", terminal.Dim})
	default:
		f.line(span{"q quit  Tab list  s sort  r reverse  / keys  p pause  arrows scroll  ? help",
			terminal.Dim})
	}
}

const keysText = `
  q, Ctrl-C            quit
  Tab, Shift-Tab       the next or the previous list: holds, waiters, sessions,
                       lost locks (the last hundred)
  w                    waiters, and back
  arrows, PgUp, PgDn   scroll; Home, End
  s or >, <            the next or the previous order: age, key, time left of
                       the lease, waiters, trouble (problems first)
  r                    reverse the order
  /                    only keys with a prefix; type it and press Enter
  p                    pause, continue

  HELD    time held        LEFT  until the lease ends unless it is renewed
  WAITED  time waited      WAIT  number of waiters on this host
  BEHIND  the holder of the lock: a process of this host, or another host

  Press a key to continue.`

func (t *Top) keys(f *frame) {
	f.line(span{"locksidecar top", terminal.Bold})
	for _, l := range strings.Split(keysText, "\n") {
		f.line(span{text: l})
	}
}
