package terminal

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Clean returns s with a mark for whatever is not to be seen or would do something: control
// characters, and those that turn the direction of what follows. Nothing of it can reach the
// terminal as a command, and two strings that differ unseen look different.
func Clean(s string) string {
	if !strings.ContainsFunc(s, unclean) {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case variation(r):
			return -1
		case unclean(r):
			return utf8.RuneError
		}
		return r
	}, s)
}

// unclean is true of an encoding fault, too: RuneError is what it is replaced by.
func unclean(r rune) bool { return !unicode.IsPrint(r) || variation(r) || r == utf8.RuneError }

// variation is true of what chooses a picture for the character before: terminals do not agree
// how wide it is then.
func variation(r rune) bool { return r >= 0xfe00 && r <= 0xfe0f }

// Width is how many columns a clean string takes. Characters that are put together of several, as
// families and flags are, may take fewer on some terminals.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	if r < 0x300 {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Fit returns a clean string cut or filled up to w columns; what is cut ends in "…".
func Fit(s string, w int) string { return cut(s, w, false) }

// FitRight is Fit with s at the right.
func FitRight(s string, w int) string { return cut(s, w, true) }

func cut(s string, w int, right bool) string {
	if w <= 0 {
		return ""
	}
	n := Width(s)
	if n > w {
		at, room := 0, w-1
		for i, r := range s {
			if room -= runeWidth(r); room < 0 {
				break
			}
			at = i + utf8.RuneLen(r)
		}
		s = s[:at] + "…"
		n = Width(s)
	}
	if right {
		return strings.Repeat(" ", w-n) + s
	}
	return s + strings.Repeat(" ", w-n)
}
