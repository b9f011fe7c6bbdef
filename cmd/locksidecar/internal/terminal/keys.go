package terminal

import (
	"bytes"
	"unicode/utf8"
)

// Key is a typed character or one of these keys.
type Key rune

const (
	Up Key = -1 - iota
	Down
	Left
	Right
	PageUp
	PageDown
	Home
	End
	Tab
	BackTab
	Enter
	Backspace
	Escape
	EraseLine // Ctrl-U
)

// sequences has the keys by the text after ESC [ or ESC O.
var sequences = map[string]Key{
	"A": Up, "B": Down, "C": Right, "D": Left, "H": Home, "F": End, "Z": BackTab,
	"1~": Home, "7~": Home, "4~": End, "8~": End, "5~": PageUp, "6~": PageDown,
}

// Decoder turns bytes into keys. The bytes may arrive in pieces of any size.
type Decoder struct{ rest []byte }

// Write adds input and returns the keys that are complete. It skips unknown sequences.
func (d *Decoder) Write(b []byte) (keys []Key) {
	d.rest = append(d.rest, b...)
	for len(d.rest) > 0 {
		k, n := next(d.rest)
		if n == 0 {
			break
		}
		d.rest = d.rest[n:]
		if k != 0 {
			keys = append(keys, k)
		}
	}
	return keys
}

// Pending reports whether the input ends in an incomplete key: an escape may be the key itself,
// or may begin a sequence.
func (d *Decoder) Pending() bool { return len(d.rest) > 0 }

// Flush ends the input: a pending escape was the key.
func (d *Decoder) Flush() (keys []Key) {
	if len(d.rest) == 1 && d.rest[0] == esc {
		keys = append(keys, Escape)
	}
	d.rest = d.rest[:0]
	return keys
}

const esc = 0x1b

// next returns the first key of b and its length. The length is 0 if the key is incomplete, and
// the key is 0 if it is unknown.
func next(b []byte) (Key, int) {
	switch c := b[0]; {
	case c == esc:
		return sequence(b)
	case c == '\t':
		return Tab, 1
	case c == '\r', c == '\n':
		return Enter, 1
	case c == 0x7f, c == '\b':
		return Backspace, 1
	case c == 0x15:
		return EraseLine, 1
	case c < 0x20:
		return 0, 1
	case !utf8.FullRune(b):
		return 0, 0
	}
	r, n := utf8.DecodeRune(b)
	if unclean(r) {
		return 0, n
	}
	return Key(r), n
}

// longest is the maximum length of a sequence. Longer ones are skipped.
const longest = 32

func sequence(b []byte) (Key, int) {
	if len(b) == 1 {
		return 0, 0
	}
	if b[1] != '[' && b[1] != 'O' {
		return Escape, 1
	}
	end := bytes.IndexFunc(b[2:], func(r rune) bool { return r >= 0x40 && r <= 0x7e })
	switch {
	case end < 0 && len(b) < longest:
		return 0, 0
	case end < 0:
		return 0, len(b)
	}
	return sequences[string(b[2:3+end])], 3 + end
}
