package terminal

import (
	"slices"
	"testing"
)

func TestKeys(t *testing.T) {
	const typed = "q\x1b[A\x1bOB\x1b[5~\x1b[6~\t\x1b[Z\r\x7f\x15é漢\x1b[1;5C\x1b[M\x01/"
	want := []Key{'q', Up, Down, PageUp, PageDown, Tab, BackTab, Enter, Backspace,
		EraseLine, 'é', '漢', '/'}
	var d Decoder
	if got := d.Write([]byte(typed)); !slices.Equal(got, want) || d.Pending() {
		t.Errorf("%v, want %v", got, want)
	}
	// The result is the same for pieces of any size.
	var got []Key
	for i := range len(typed) {
		got = append(got, d.Write([]byte{typed[i]})...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("byte by byte: %v, want %v", got, want)
	}
}

func TestEscapeIsAKeyWhenNothingFollows(t *testing.T) {
	var d Decoder
	if got := d.Write([]byte{esc}); got != nil || !d.Pending() {
		t.Errorf("%v before it is known", got)
	}
	if got := d.Flush(); !slices.Equal(got, []Key{Escape}) || d.Pending() {
		t.Errorf("%v", got)
	}
	if got := d.Write([]byte("\x1bx")); !slices.Equal(got, []Key{Escape, 'x'}) {
		t.Errorf("%v", got)
	}
	// A sequence that does not end is dropped.
	d.Write([]byte("\x1b[12"))
	if got := d.Flush(); got != nil || d.Pending() {
		t.Errorf("%v", got)
	}
	d.Write(append([]byte("\x1b["), make([]byte, 100)...))
	if d.Pending() {
		t.Error("noise is kept")
	}
}
