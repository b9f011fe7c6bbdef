package redlock_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/redlock"
)

// The note of a holder names the nodes that do not have its lease, and those that do not answer. A
// node that does not answer counts as agreeing.
func TestANoteNamesTheNodesThatDisagree(t *testing.T) {
	c := start(t, 5)
	p := newPeer(t, c.url(patient), redlock.WithGrace(bound))
	q := newPeer(t, c.url(patient), redlock.WithGrace(bound))
	p.take("k", cache.Exclusive)
	p.settled()
	notes := func(want ...string) {
		t.Helper()
		for asker, mine := range map[*peer]bool{p: true, q: false} {
			locks, err := asker.Holders(t.Context(), "k", cache.Exclusive, 10)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range locks {
				if got = append(got, l.Note); l.Mine != mine || l.Foreign || l.Daemon == "" {
					t.Errorf("%+v", l)
				}
			}
			if len(got) != len(want) || len(got) == 1 && got[0] != want[0] {
				t.Errorf("notes %q, want %q", got, want)
			}
		}
	}
	notes("")
	c[3].Do("DEL", "lock:k")
	notes("not on " + c[3].Addr())
	c[4].Kill()
	notes("not on " + c[3].Addr() + "; no answer from " + c[4].Addr())
	c[2].Do("DEL", "lock:k")
	notes("not on " + c[2].Addr() + ", " + c[3].Addr() + "; no answer from " + c[4].Addr())
	c[1].Do("DEL", "lock:k") // only one node is known to have it, and at most one more has it
	notes()
}
