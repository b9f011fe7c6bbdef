package top

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// count is how many rows the list that is shown has.
func (t *Top) count() int {
	v := t.view
	if v == nil {
		return 0
	}
	return [panes]int{len(v.Holds), len(v.Waiters), len(v.Sessions), len(v.Lost)}[t.pane]
}

// cut says whether the daemon has more rows of it.
func (t *Top) cut() bool {
	m := &t.view.More
	return [panes]bool{m.Holds, m.Waiters, m.Sessions, false}[t.pane]
}

// list shows up to n rows of a list from the row first on, under their titles.
func (t *Top) list(f *frame, p pane, first, n int) {
	v := t.view
	switch p {
	case holds:
		show(f, holdColumns, v.Holds, first, n)
	case waiters:
		show(f, waiterColumns, v.Waiters, first, n)
	case sessions:
		show(f, sessionColumns, v.Sessions, first, n)
	case lost:
		show(f, lostColumns(v), v.Lost, first, n)
	}
}

func show[R any](f *frame, columns []column[R], rows []R, first, n int) {
	first = min(first, len(rows))
	titles, lines := table(columns, rows[first:min(first+n, len(rows))], f.w, f.colors)
	f.line(span{titles, terminal.Reverse})
	for _, l := range lines {
		f.add(l)
	}
}

func keyColumn[R any](least int, text func(*R) string) column[R] {
	return column[R]{title: "KEY", least: least, text: text}
}

func modeColumn[R any](rank int, text func(*R) string) column[R] {
	return column[R]{title: "MODE", rank: rank, least: 9, most: 9, text: text}
}

// who are the columns that say whose a row is.
func who[R any](of func(*R) *engine.ViewWho) []column[R] {
	return []column[R]{pidColumn(1, of), clientColumn(of), sessionColumn(of)}
}

func pidColumn[R any](rank int, of func(*R) *engine.ViewWho) column[R] {
	return column[R]{title: "PID", rank: rank, least: 7, most: 10, right: true, text: func(r *R) string { return unlessZero(of(r).PID) }}
}

func clientColumn[R any](of func(*R) *engine.ViewWho) column[R] {
	return column[R]{title: "CLIENT", rank: 1, least: 12, most: 32, text: func(r *R) string { return orDash(of(r).Client) }}
}

func sessionColumn[R any](of func(*R) *engine.ViewWho) column[R] {
	return column[R]{title: "SESSION", rank: 2, least: 7, most: 20, right: true, text: func(r *R) string { return number(of(r).Session) }}
}

func duration[R any](title string, rank int, ms func(*R) int64, style func(*R) terminal.Style) column[R] {
	return column[R]{title: title, rank: rank, least: 6, most: 6, right: true, text: func(r *R) string { return Short(ms(r)) }, style: style}
}

func countColumn[R any](title string, rank int, n func(*R) int64) column[R] {
	return column[R]{title: title, rank: rank, least: len(title), most: 10, right: true, text: func(r *R) string { return number(n(r)) }}
}

func fence[R any](of func(*R) uint64) column[R] {
	return column[R]{title: "FENCE", rank: 3, least: 19, most: 19, right: true, text: func(r *R) string { return unlessZero(of(r)) }}
}

func owner[R any](of func(*R) uint64) column[R] {
	return column[R]{title: "OWNER", rank: 4, least: 6, most: 20, right: true, text: func(r *R) string { return strconv.FormatUint(of(r), 10) }}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

var holdColumns = append(append([]column[engine.ViewHold]{
	keyColumn(16, func(h *engine.ViewHold) string { return h.Key }),
	modeColumn(1, func(h *engine.ViewHold) string {
		if h.Forced {
			return "unlocked"
		}
		return h.Mode
	}),
	duration("HELD", 0, func(h *engine.ViewHold) int64 { return h.Held }, nil),
	duration("LEFT", 0, func(h *engine.ViewHold) int64 { return h.Left }, leftStyle),
	countColumn("WAIT", 0, func(h *engine.ViewHold) int64 { return int64(h.Waiters) }),
}, who(func(h *engine.ViewHold) *engine.ViewWho { return &h.ViewWho })...),
	fence(func(h *engine.ViewHold) uint64 { return h.Fence }),
	column[engine.ViewHold]{title: "STATE", rank: 3, least: 8, most: 24, text: state},
	owner(func(h *engine.ViewHold) uint64 { return h.Owner }),
	column[engine.ViewHold]{title: "CLASS", rank: 4, least: 8, most: 24, text: func(h *engine.ViewHold) string { return orDash(h.Class) }})

// leftStyle warns of a lease of which so little is left that renewals must have failed.
func leftStyle(h *engine.ViewHold) terminal.Style {
	switch {
	case h.Forced:
		return terminal.Dim
	case !h.Fixed && h.Left*10 < h.TTL:
		return terminal.Bad
	}
	return terminal.Plain
}

// state is what is out of the ordinary of a hold.
func state(h *engine.ViewHold) string {
	var all []string
	if h.Degraded {
		all = append(all, "degraded")
	}
	if h.Fixed {
		all = append(all, "fixed")
	}
	return orDash(strings.Join(all, ","))
}

// waiterColumns rank the holder (BEHIND) above the waiter's mode, process and session, which a screen of 80
// columns does not show.
var waiterColumns = []column[engine.ViewWaiter]{
	keyColumn(16, func(w *engine.ViewWaiter) string { return w.Key }),
	modeColumn(2, func(w *engine.ViewWaiter) string { return w.Mode }),
	duration("WAITED", 0, func(w *engine.ViewWaiter) int64 { return w.Waited }, nil),
	duration("LEFT", 0, func(w *engine.ViewWaiter) int64 { return w.Left }, nil),
	countColumn("PLACE", 0, func(w *engine.ViewWaiter) int64 { return int64(w.Place) }),
	pidColumn(2, waiting),
	clientColumn(waiting),
	sessionColumn(waiting),
	{title: "BEHIND", rank: 1, least: 16, most: 40, text: Behind},
	owner(func(w *engine.ViewWaiter) uint64 { return w.Owner }),
}

func waiting(w *engine.ViewWaiter) *engine.ViewWho { return &w.ViewWho }

// Behind names the holder of the key that w waits for: the process and client on this host, or
// another host, and for how long that has held it. The text may have control characters: escape it before
// it is shown.
func Behind(w *engine.ViewWaiter) string {
	switch {
	case w.Behind != nil:
		return fmt.Sprintf("%s %s", unlessZero(w.Behind.PID), orDash(w.Behind.Client))
	case w.Holder != nil && w.Holder.Held >= 0:
		return w.Holder.String() + " for " + Short(w.Holder.Held)
	case w.Holder != nil:
		return w.Holder.String()
	}
	return "-"
}

var sessionColumns = []column[engine.ViewSession]{
	{title: "CLIENT", least: 16, text: func(s *engine.ViewSession) string { return orDash(s.Client) }},
	{title: "SESSION", rank: 1, least: 7, most: 20, right: true, text: func(s *engine.ViewSession) string { return number(s.Session) }},
	{title: "PID", least: 7, most: 10, right: true, text: func(s *engine.ViewSession) string { return unlessZero(s.PID) }},
	{title: "UID", rank: 1, least: 5, most: 10, right: true, text: func(s *engine.ViewSession) string { return number(s.UID) }},
	duration("SINCE", 0, func(s *engine.ViewSession) int64 { return s.Since }, nil),
	duration("HEARD", 1, func(s *engine.ViewSession) int64 { return s.Heard }, nil),
	countColumn("HOLDS", 0, func(s *engine.ViewSession) int64 { return s.Holds }),
	countColumn("WAITS", 0, func(s *engine.ViewSession) int64 { return s.Waiters }),
}

func lostColumns(v *engine.View) []column[engine.ViewLost] {
	columns := []column[engine.ViewLost]{
		duration("AGO", 0, func(l *engine.ViewLost) int64 { return v.At.Sub(l.At).Milliseconds() }, nil),
		keyColumn(16, func(l *engine.ViewLost) string { return l.Key }),
		{title: "REASON", least: 10, most: 16, text: func(l *engine.ViewLost) string { return l.Reason }},
		duration("HELD", 0, func(l *engine.ViewLost) int64 { return l.Held }, nil),
	}
	columns = append(columns, who(func(l *engine.ViewLost) *engine.ViewWho { return &l.ViewWho })...)
	return append(columns, modeColumn(1, func(l *engine.ViewLost) string { return l.Mode }), fence(func(l *engine.ViewLost) uint64 { return l.Fence }))
}

// WriteRound writes what there is as plain text: how the daemon is, what is held, who waits.
func (t *Top) WriteRound(w io.Writer) error {
	f := &frame{h: math.MaxInt}
	t.header(f, t.view.At)
	f.add("")
	t.round(f, holds, len(t.view.Holds), t.view.More.Holds)
	if n := len(t.view.Waiters); n > 0 {
		f.add("")
		t.round(f, waiters, n, t.view.More.Waiters)
	}
	_, err := io.WriteString(w, strings.Join(f.lines, "\n")+"\n")
	return err
}

func (t *Top) round(f *frame, p pane, n int, more bool) {
	t.list(f, p, 0, n)
	if more {
		f.add(fmt.Sprintf("(the first %d)", n))
	}
}
