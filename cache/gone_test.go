package cache

import (
	"errors"
	"testing"
	"time"
)

// A store says of a token that queues that it has lost its place, or that it was withdrawn. It is
// never asked for again: another one joins.
func TestATokenThatWasWithdrawnIsNotAskedForAgain(t *testing.T) {
	for name, r := range map[string]Result{
		"busy": {Status: Busy, Left: -1},
		"refused": {Status: Refused, Left: -1, Gone: true,
			Err: errors.New("fences would not rise")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			b.acquire(b.session(), "k", waits)
			first := b.op(OpJoin)
			b.answer(first, Result{Status: Queued, Left: -1})
			b.tick(time.Minute)
			again := b.op(OpJoin)
			if again.Token != first.Token {
				t.Fatalf("token %d joins behind %d", again.Token, first.Token)
			}
			b.answer(again, r)
			if len(b.ops) == 0 {
				b.tick(time.Second)
			}
			if next := b.op(OpJoin); next.Token == first.Token {
				t.Error("the same token joins again")
			}
		})
	}
}
