package terminal

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Clean replaces each character of s that is invisible or has an effect, such as control
// characters and those that change the direction of text. So no part of s can be a command to the
// terminal, and two different strings look different.
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

// unclean is also true of RuneError, which replaces an encoding error.
func unclean(r rune) bool { return !unicode.IsPrint(r) || variation(r) || r == utf8.RuneError }

// variation reports whether r selects a variant of the character before. Terminals disagree about
// the width of these.
func variation(r rune) bool { return r >= 0xfe00 && r <= 0xfe0f }

// Width returns the number of columns of a clean string. Characters that are composed of several,
// such as families and flags, take fewer on some terminals.
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

// Fit returns a clean string cut or padded to w columns. If it is cut, it ends in "…".
func Fit(s string, w int) string { return cut(s, w, false) }

// FitRight is like Fit, but aligns s to the right.
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
