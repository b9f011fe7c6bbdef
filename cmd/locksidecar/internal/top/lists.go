package top

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// count returns the number of rows of the shown list.
func (t *Top) count() int {
	v := t.view
	if v == nil {
		return 0
	}
	return [panes]int{len(v.Holds), len(v.Waiters), len(v.Sessions), len(v.Lost)}[t.pane]
}

// cut reports whether the daemon has more rows of the shown list.
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

func keyColumn[R any](minWidth int, text func(*R) string) column[R] {
	return column[R]{title: "KEY", min: minWidth, text: text}
}

func modeColumn[R any](rank int, text func(*R) string) column[R] {
	return column[R]{title: "MODE", rank: rank, min: 9, max: 9, text: text}
}

// numbers returns a column that is aligned to the right.
func numbers[R any](title string, rank, min, max int, text func(*R) string) column[R] {
	return column[R]{title: title, rank: rank, min: min, max: max, right: true, text: text}
}

// who returns the columns that identify the client of a row.
func who[R any](of func(*R) *engine.ViewWho) []column[R] {
	return []column[R]{pidColumn(1, of), clientColumn(of), sessionColumn(of)}
}

func pidColumn[R any](rank int, of func(*R) *engine.ViewWho) column[R] {
	return numbers("PID", rank, 7, 10, func(r *R) string { return UnlessZero(of(r).PID) })
}

func clientColumn[R any](of func(*R) *engine.ViewWho) column[R] {
	return column[R]{title: "CLIENT", rank: 1, min: 12, max: 32,
		text: func(r *R) string { return OrDash(of(r).Client) }}
}

func sessionColumn[R any](of func(*R) *engine.ViewWho) column[R] {
	return numbers("SESSION", 2, 7, 20, func(r *R) string { return UnlessZero(of(r).Session) })
}

func duration[R any](
	title string, rank int, ms func(*R) int64, style func(*R) terminal.Style,
) column[R] {
	c := numbers(title, rank, 6, 6, func(r *R) string { return Short(ms(r)) })
	c.style = style
	return c
}

func countColumn[R any](title string, rank int, n func(*R) int64) column[R] {
	return numbers(title, rank, len(title), 10, func(r *R) string { return number(n(r)) })
}

func fence[R any](of func(*R) uint64) column[R] {
	return numbers("FENCE", 3, 19, 19, func(r *R) string { return UnlessZero(of(r)) })
}

func owner[R any](of func(*R) uint64) column[R] {
	return numbers("OWNER", 4, 6, 20, func(r *R) string { return number(of(r)) })
}

// OrDash returns s, or "-" if s is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

var holdColumns = append(append([]column[engine.ViewHold]{
	keyColumn(16, func(h *engine.ViewHold) string { return h.Key }),
	modeColumn(1, func(h *engine.ViewHold) string {
		switch {
		case h.Forced:
			return "unlocked"
		case h.Detached:
			return "detached"
		}
		return h.Mode
	}),
	duration("HELD", 0, func(h *engine.ViewHold) int64 { return h.Held }, nil),
	duration("LEFT", 0, func(h *engine.ViewHold) int64 { return h.Left }, leftStyle),
	waitColumn(),
}, who(func(h *engine.ViewHold) *engine.ViewWho { return &h.ViewWho })...),
	fence(func(h *engine.ViewHold) uint64 { return h.Fence }),
	column[engine.ViewHold]{title: "STATE", rank: 3, min: 8, max: 24, text: state},
	owner(func(h *engine.ViewHold) uint64 { return h.Owner }),
	column[engine.ViewHold]{title: "CLASS", rank: 4, min: 8, max: 24,
		text: func(h *engine.ViewHold) string { return OrDash(h.Class) }})

func waitColumn() column[engine.ViewHold] {
	c := countColumn("WAIT", 0, func(h *engine.ViewHold) int64 { return int64(h.Waiters) })
	c.style = func(h *engine.ViewHold) terminal.Style {
		if h.Waiters > 0 {
			return terminal.Warning
		}
		return terminal.Plain
	}
	return c
}

// leftStyle highlights a lease that has so little time left that renewals must have failed.
func leftStyle(h *engine.ViewHold) terminal.Style {
	switch {
	case h.Forced:
		return terminal.Dim
	case h.Late():
		return terminal.Bad
	}
	return terminal.Plain
}

// state returns what is unusual about a hold.
func state(h *engine.ViewHold) string {
	var all []string
	if h.Degraded {
		all = append(all, "degraded")
	}
	switch {
	case h.Detached:
		all = append(all, fmt.Sprintf("of user %d", h.UID))
	case h.Fixed:
		all = append(all, "fixed")
	}
	return OrDash(strings.Join(all, ","))
}

// waiterColumns gives the holder (BEHIND) a higher rank than the waiter's mode, process and
// session, for which a screen of 80 columns has no room.
var waiterColumns = []column[engine.ViewWaiter]{
	keyColumn(16, func(w *engine.ViewWaiter) string { return w.Key }),
	modeColumn(2, func(w *engine.ViewWaiter) string { return w.Mode }),
	duration("WAITED", 0, func(w *engine.ViewWaiter) int64 { return w.Waited }, nil),
	duration("LEFT", 0, func(w *engine.ViewWaiter) int64 { return w.Left }, nil),
	countColumn("PLACE", 0, func(w *engine.ViewWaiter) int64 { return int64(w.Place) }),
	pidColumn(2, waiting),
	clientColumn(waiting),
	sessionColumn(waiting),
	{title: "BEHIND", rank: 1, min: 16, max: 40, text: Behind},
	owner(func(w *engine.ViewWaiter) uint64 { return w.Owner }),
}

func waiting(w *engine.ViewWaiter) *engine.ViewWho { return &w.ViewWho }

// Behind names the holder of the key that w waits for: the process and client on this host, or
// another host, and for how long that has held it. The text may have control characters: escape
// it before it is shown.
func Behind(w *engine.ViewWaiter) string {
	switch {
	case w.Behind != nil:
		return fmt.Sprintf("%s %s", UnlessZero(w.Behind.PID), OrDash(w.Behind.Client))
	case w.Holder != nil && w.Holder.Held >= 0:
		return w.Holder.String() + " for " + Short(w.Holder.Held)
	case w.Holder != nil:
		return w.Holder.String()
	}
	return "-"
}

var sessionColumns = []column[engine.ViewSession]{
	{title: "CLIENT", min: 16, text: func(s *engine.ViewSession) string { return OrDash(s.Client) }},
	numbers("SESSION", 1, 7, 20, func(s *engine.ViewSession) string { return number(s.Session) }),
	numbers("PID", 0, 7, 10, func(s *engine.ViewSession) string { return UnlessZero(s.PID) }),
	numbers("UID", 1, 5, 10, func(s *engine.ViewSession) string { return number(s.UID) }),
	duration("SINCE", 0, func(s *engine.ViewSession) int64 { return s.Since }, nil),
	duration("HEARD", 1, func(s *engine.ViewSession) int64 { return s.Heard }, nil),
	countColumn("HOLDS", 0, func(s *engine.ViewSession) int64 { return s.Holds }),
	countColumn("WAITS", 0, func(s *engine.ViewSession) int64 { return s.Waiters }),
}

func lostColumns(v *engine.View) []column[engine.ViewLost] {
	columns := []column[engine.ViewLost]{
		duration("AGO", 0, func(l *engine.ViewLost) int64 { return v.At.Sub(l.At).Milliseconds() }, nil),
		keyColumn(16, func(l *engine.ViewLost) string { return l.Key }),
		{title: "REASON", min: 10, max: 16, text: func(l *engine.ViewLost) string { return l.Reason }},
		duration("HELD", 0, func(l *engine.ViewLost) int64 { return l.Held }, nil),
	}
	columns = append(columns, who(func(l *engine.ViewLost) *engine.ViewWho { return &l.ViewWho })...)
	return append(columns, modeColumn(1, func(l *engine.ViewLost) string { return l.Mode }),
		fence(func(l *engine.ViewLost) uint64 { return l.Fence }))
}

// WriteRound writes the state of the daemon, the holds and the waiters as plain text.
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
