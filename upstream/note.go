package upstream

import "context"

// Noter is a Store that keeps one small text, the note, which all its daemons share and which does not end
// with any of them.
type Noter interface {
	// Note returns the text and its version: 0, with no text, if there is none. It has every change that
	// any daemon had finished before the call.
	Note(ctx context.Context) (text []byte, version int64, err error)

	// SetNote replaces the text if it still has that version; else ok is false. After an error it is not
	// known whether the text was replaced.
	SetNote(ctx context.Context, text []byte, version int64) (ok bool, err error)
}
