package load

import (
	"math/rand/v2"
	"testing"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
)

func TestBoardSeesWhatIsWrong(t *testing.T) {
	path, err := NewBoard(t.TempDir(), 30)
	if err != nil {
		t.Fatal(err)
	}
	b, err := openBoard(path, 30)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	const key = 29
	step := func(what string, id, fence uint64, mode protocol.Mode, want harness.Seen) {
		t.Helper()
		if got := b.enter(key, id, fence, mode); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	ex, sh := protocol.Exclusive, protocol.Shared
	step("the first", 1, 10, ex, harness.Seen{Handoff: true})
	b.leave(key, 1, ex)
	step("the same again", 1, 11, ex, harness.Seen{})
	step("a second one inside", 2, 12, ex, harness.Seen{Handoff: true, Overlap: true})
	b.leave(key, 1, ex)
	step("a reader", 3, 14, sh, harness.Seen{Handoff: true})
	step("a reader with an earlier fence", 4, 13, sh, harness.Seen{Handoff: true})
	step("a reader with the last writer's fence", 5, 12, sh,
		harness.Seen{Handoff: true, FenceFault: true})
	step("a writer among readers", 6, 15, ex, harness.Seen{Handoff: true, Overlap: true})
	step("a reader beside a writer", 7, 16, sh, harness.Seen{Handoff: true, Overlap: true})
	for id := uint64(3); id <= 7; id++ {
		if id != 6 {
			b.leave(key, id, sh)
		}
	}
	b.leave(key, 6, ex)
	step("a writer whose fence is a reader's", 8, 16, ex,
		harness.Seen{Handoff: true, FenceFault: true})
	b.leave(key, 8, ex)
	step("no fence", 9, 0, ex, harness.Seen{Handoff: true})
	if got := b.enter(0, 9, 1, ex); got != (harness.Seen{Handoff: true}) {
		t.Errorf("another key: %+v", got)
	}
}

func TestSkewedKeys(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	a := WorkArgs{Keys: 1000, Skew: true}
	const draws = 10_000
	few, seen := 0, map[int]bool{}
	for range draws {
		k := a.pick(rnd)
		if k < 0 || k >= a.Keys {
			t.Fatalf("key %d of %d", k, a.Keys)
		}
		seen[k] = true
		if k < a.Keys/5 {
			few++
		}
	}
	if few < draws*78/100 || few > draws*82/100 || len(seen) < 850 {
		t.Errorf("%d of %d draws were of the first fifth; %d keys were drawn", few, draws, len(seen))
	}
}
