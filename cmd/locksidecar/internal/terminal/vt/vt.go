// Package vt is a terminal for tests. It understands what package terminal writes, and reports
// everything else as a fault. It has no goroutine. Only one goroutine at a time may use a Terminal.
package vt

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
)

// Terminal is a screen together with a record of what a program has done to it.
type Terminal struct {
	w, h        int
	main, other page // the shown page is other while Alternate is true, and main otherwise
	rest        []byte

	Alternate bool // the alternate screen is shown
	Hidden    bool // the cursor is hidden
	NoWrap    bool
	Colored   bool     // something had a colour
	Faults    []string // unknown sequences, and text that did not fit into its line
}

type page struct {
	cells    [][]string // "" is the right half of a wide character
	row, col int
}

// New returns an empty screen of w columns and h lines.
func New(w, h int) *Terminal {
	t := &Terminal{}
	t.Resize(w, h)
	return t
}

// Resize changes the size of the screen and clears it.
func (t *Terminal) Resize(w, h int) {
	t.w, t.h = w, h
	t.main, t.other = blank(w, h), blank(w, h)
}

func blank(w, h int) page {
	p := page{cells: make([][]string, h)}
	for i := range p.cells {
		p.cells[i] = make([]string, w)
		p.erase(i, 0)
	}
	return p
}

func (p *page) erase(row, from int) {
	for c := from; c < len(p.cells[row]); c++ {
		p.cells[row][c] = " "
	}
}

func (t *Terminal) page() *page {
	if t.Alternate {
		return &t.other
	}
	return &t.main
}

// Lines returns the visible lines, without trailing spaces.
func (t *Terminal) Lines() []string {
	lines := make([]string, t.h)
	for i, row := range t.page().cells {
		lines[i] = strings.TrimRight(strings.Join(row, ""), " ")
	}
	return lines
}

func (t *Terminal) String() string { return strings.Join(t.Lines(), "\n") }

func (t *Terminal) fault(format string, a ...any) {
	t.Faults = append(t.Faults, fmt.Sprintf(format, a...))
}

// Write interprets the output of a program, which may arrive in pieces of any size.
func (t *Terminal) Write(b []byte) (int, error) {
	t.rest = append(t.rest, b...)
	for len(t.rest) > 0 {
		n := t.step(t.rest)
		if n == 0 {
			break
		}
		t.rest = t.rest[n:]
	}
	return len(b), nil
}

// step carries out the first character or sequence of b and returns its length, or 0 if that is
// incomplete.
func (t *Terminal) step(b []byte) int {
	p := t.page()
	switch c := b[0]; {
	case c == 0x1b:
		return t.escape(b)
	case c == '\r':
		p.col = 0
	case c == '\n':
		p.row++
		if p.row == t.h {
			p.cells = append(p.cells[1:], make([]string, t.w))
			p.row--
			p.erase(p.row, 0)
		}
	case c == '\b':
		p.col = max(0, p.col-1)
	case c < 0x20 || c == 0x7f:
		t.fault("control character %#x", c)
	case !utf8.FullRune(b):
		return 0
	default:
		r, n := utf8.DecodeRune(b)
		t.put(r)
		return n
	}
	return 1
}

func (t *Terminal) put(r rune) {
	p, w := t.page(), terminal.Width(string(r))
	if r >= 0x80 && r < 0xa0 {
		t.fault("control character %#x", r)
		return
	}
	if w == 0 {
		return
	}
	if p.col+w > t.w {
		t.fault("%q in line %d did not fit", r, p.row)
		return
	}
	p.cells[p.row][p.col] = string(r)
	if w == 2 {
		p.cells[p.row][p.col+1] = ""
	}
	p.col += w
}

func (t *Terminal) escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	if b[1] != '[' {
		t.fault("escape %q", b[1])
		return 2
	}
	for i := 2; i < len(b); i++ {
		if b[i] >= 0x40 && b[i] <= 0x7e {
			t.sequence(string(b[2:i]), b[i])
			return i + 1
		}
	}
	return 0
}

func (t *Terminal) sequence(args string, final byte) {
	p := t.page()
	switch name := args + string(final); {
	case final == 'H':
		row, col, _ := strings.Cut(args, ";")
		p.row, p.col = number(row, t.h), number(col, t.w)
	case final == 'G':
		p.col = number(args, t.w)
	case name == "K":
		p.erase(p.row, p.col)
	case name == "2J":
		for i := range p.cells {
			p.erase(i, 0)
		}
	case final == 'm' && strings.Trim(args, "0123456789;") == "":
		for n := range strings.SplitSeq(args, ";") {
			t.Colored = t.Colored || len(n) == 2
		}
	case name == "?1049h", name == "?1049l":
		if t.Alternate = final == 'h'; t.Alternate {
			t.other = blank(t.w, t.h)
		}
	case name == "?25h", name == "?25l":
		t.Hidden = final == 'l'
	case name == "?7h", name == "?7l":
		t.NoWrap = final == 'l'
	default:
		t.fault("sequence %q", name)
	}
}

// number parses an argument that counts from 1, limited to the size of the screen.
func number(s string, most int) int {
	n, _ := strconv.Atoi(s)
	return min(max(n, 1), most) - 1
}
