package terminal

import "fmt"

// Style is the appearance of text.
type Style string

const (
	Plain   Style = ""
	Bold    Style = "1"
	Dim     Style = "2"
	Reverse Style = "7"
	Bad     Style = "31"   // red
	Warning Style = "33"   // yellow
	Worst   Style = "1;31" // red and bold
)

// Paint returns text in a style. Without colours, Bad and Warning are bold.
func Paint(colors bool, s Style, text string) string {
	if !colors && (s == Bad || s == Warning || s == Worst) {
		s = Bold
	}
	if s == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// At returns the sequence that moves the cursor to column c, counted from 0.
func At(c int) string { return fmt.Sprintf("\x1b[%dG", c+1) }
