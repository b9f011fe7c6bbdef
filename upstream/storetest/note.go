package storetest

import (
	"testing"

	"github.com/locksidecar/locksidecar/upstream"
)

// Note tests the note of a store as two daemons see it.
func Note(t *testing.T, a, b upstream.Noter) {
	t.Helper()
	read := func(n upstream.Noter, want string) (version int64) {
		t.Helper()
		text, version, err := n.Note(t.Context())
		if err != nil || string(text) != want || (version == 0) != (want == "") {
			t.Fatalf("the note is %q, version %d (%v), want %q", text, version, err, want)
		}
		return version
	}
	write := func(n upstream.Noter, text string, version int64, want bool) {
		t.Helper()
		if ok, err := n.SetNote(t.Context(), []byte(text), version); err != nil || ok != want {
			t.Fatalf("writing %q for version %d says %v (%v)", text, version, ok, err)
		}
	}
	read(a, "")
	write(a, "one", 0, true)
	write(b, "other", 0, false)
	version := read(b, "one")
	write(b, "two", version, true)
	write(a, "other", version, false)
	write(a, "three", read(a, "two"), true)
	read(b, "three")
}
