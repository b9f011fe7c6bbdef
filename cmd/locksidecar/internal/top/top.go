package top

import (
	"slices"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// pane is one of the lists.
type pane int

const (
	holds pane = iota
	waiters
	sessions
	lost
	panes
)

// maxPrefix bounds the typed prefix, because no key is longer.
const maxPrefix = protocol.MaxKey

// Action tells the caller what to do after a key.
type Action int

const (
	Show  Action = iota // show the next frame
	Fetch               // fetch another view, because the query has changed
	Quit
)

// Top is the state of the display.
type Top struct {
	Colors bool
	Sort   string
	Desc   bool
	Prefix string

	pane   pane
	paused bool
	help   bool
	typing bool   // a prefix is being typed
	typed  string // the part typed so far
	first  [panes]int
	rows   int // rows of the pane when it was last shown

	view   *engine.View // nil until there is a view
	rates  rates
	failed error // why there is no newer view
	since  time.Time
}

// rates has numbers per second.
type rates struct {
	known                               bool
	acquires, granted, handoffs, losses float64
}

// Query returns the query to send to the daemon, with enough rows for a screen of h lines.
func (t *Top) Query(h int) engine.ViewQuery {
	return engine.ViewQuery{Prefix: t.Prefix, Sort: t.Sort, Desc: t.Desc,
		Limit: min(max(t.first[t.pane]+2*h, 50), engine.MaxViewRows)}
}

// Paused reports whether no newer view is wanted.
func (t *Top) Paused() bool { return t.paused }

// Took records a view.
func (t *Top) Took(v *engine.View) {
	t.failed = nil
	t.rates = ratesOf(t.view, v)
	t.view = v
}

// Failed records that there was no answer at a time. The last view stays.
func (t *Top) Failed(err error, at time.Time) {
	if t.failed == nil {
		t.since = at
	}
	t.failed = err
}

// ratesOf compares two views of one daemon. Without an earlier view it uses the history in v.
func ratesOf(before, v *engine.View) rates {
	if before == nil || before.PID != v.PID || before.Up > v.Up {
		if len(v.History) == 0 {
			return rates{}
		}
		last := v.History[len(v.History)-1]
		return rates{known: true, acquires: last.Acquires, granted: -1, handoffs: -1, losses: last.Lost}
	}
	d := float64(v.Up-before.Up) / 1000
	if d <= 0 {
		return rates{}
	}
	a, b := &before.Totals, &v.Totals
	per := func(a, b uint64) float64 { return float64(b-min(a, b)) / d }
	return rates{true, per(a.Acquires, b.Acquires), per(a.Granted, b.Granted),
		per(a.Handoffs, b.Handoffs), per(a.Lost, b.Lost)}
}

// Key handles a typed key.
func (t *Top) Key(k terminal.Key) Action {
	switch {
	case t.typing:
		return t.typeKey(k)
	case t.help:
		t.help = false
		if k == 'q' {
			return Quit
		}
		return Show
	}
	switch k {
	case 'q':
		return Quit
	case '?', 'h':
		t.help = true
	case '/':
		t.typing, t.typed = true, t.Prefix
	case 'p', ' ':
		if t.paused = !t.paused; !t.paused {
			return Fetch
		}
	case 's', '>':
		return t.sort(1)
	case '<':
		return t.sort(len(engine.ViewSorts) - 1)
	case 'r':
		t.Desc = !t.Desc
		return Fetch
	default:
		return t.move(k)
	}
	return Show
}

func (t *Top) move(k terminal.Key) Action {
	at := &t.first[t.pane]
	switch k {
	case terminal.Tab, terminal.Right:
		t.pane = (t.pane + 1) % panes
	case terminal.BackTab, terminal.Left:
		t.pane = (t.pane + panes - 1) % panes
	case 'w':
		if t.pane == waiters {
			t.pane = holds
		} else {
			t.pane = waiters
		}
	case terminal.Up, 'k':
		*at--
	case terminal.Down, 'j':
		*at++
	case terminal.PageUp:
		*at -= t.rows
	case terminal.PageDown:
		*at += t.rows
	case terminal.Home, 'g':
		*at = 0
	case terminal.End, 'G':
		*at = 1 << 20
	default:
		return Show
	}
	*at = max(0, min(*at, t.count()-t.rows))
	if t.view != nil && t.cut() && !t.paused && t.count() < *at+2*t.rows {
		return Fetch // the rows that follow
	}
	return Show
}

func (t *Top) sort(by int) Action {
	sorts := engine.ViewSorts
	t.Sort = sorts[(max(0, slices.Index(sorts, t.Sort))+by)%len(sorts)]
	t.first = [panes]int{}
	return Fetch
}

// typeKey edits the prefix.
func (t *Top) typeKey(k terminal.Key) Action {
	switch k {
	case terminal.Escape:
		t.typing = false
	case terminal.Enter:
		t.typing = false
		if t.typed != t.Prefix {
			t.Prefix, t.first = t.typed, [panes]int{}
			return Fetch
		}
	case terminal.EraseLine:
		t.typed = ""
	case terminal.Backspace:
		_, n := utf8.DecodeLastRuneInString(t.typed)
		t.typed = t.typed[:len(t.typed)-n]
	default:
		if k > 0 && len(t.typed)+utf8.RuneLen(rune(k)) <= maxPrefix {
			t.typed += string(rune(k))
		}
	}
	return Show
}
