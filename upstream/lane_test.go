package upstream_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func op(token uint64) upstream.Op { return upstream.Op{Kind: cache.OpTry, Key: "k", Token: token} }

func TestALaneGathersWhileBatchesAreInFlightAndKeepsTheOrder(t *testing.T) {
	l := upstream.NewLane(2, 3)
	if l.Next() != nil {
		t.Fatal("a batch of nothing")
	}
	l.Push(op(1))
	a := l.Next()
	for i := range uint64(7) {
		l.Push(op(i + 2))
	}
	b := l.Next()
	if len(a.Ops) != 1 || len(b.Ops) != 3 || len(b.Results) != 3 || b.Ops[0].Token != 2 {
		t.Fatal(a.Ops, b.Ops)
	}
	if l.Next() != nil {
		t.Fatal("more in flight than may be")
	}
	b.Results[0].Status = cache.Granted
	l.Done(b)
	c := l.Next()
	if len(c.Ops) != 3 || c.Ops[0].Token != 5 || c.Results[0].Status != cache.Unknown {
		t.Fatal(c.Ops, c.Results)
	}
	l.Done(a)
	if d := l.Next(); len(d.Ops) != 1 || d.Ops[0].Token != 8 {
		t.Fatal(d.Ops)
	}
}

// Each op is sent once and in order, however the ends of the queue move.
func TestManyWaitingOpsKeepTheirOrder(t *testing.T) {
	l := upstream.NewLane(1, 7)
	next, want := uint64(1), uint64(1)
	for round := range 2000 {
		for range round % 13 {
			l.Push(op(next))
			next++
		}
		if b := l.Next(); b != nil {
			for _, o := range b.Ops {
				if o.Token != want {
					t.Fatalf("%d comes instead of %d", o.Token, want)
				}
				want++
			}
			l.Done(b)
		}
	}
	for b := l.Next(); b != nil; b = l.Next() {
		want += uint64(len(b.Ops))
		l.Done(b)
	}
	if n, _ := l.Depth(); n != 0 || want != next {
		t.Errorf("%d wait; %d of %d have come", n, want-1, next-1)
	}
}

// A renewal may still wait when the same key is to be renewed under another token.
func TestABatchRenewsALockOnce(t *testing.T) {
	renew := func(key string, mode cache.Mode, token uint64) upstream.Op {
		return upstream.Op{Kind: cache.OpRenew, Key: key, Mode: mode, Token: token}
	}
	l := upstream.NewLane(3, 256)
	for i := range uint64(600) { // more than a chunk of the queue
		l.Push(renew("s", cache.Permit, i))
	}
	l.Push(renew("a", cache.Exclusive, 1), renew("b", cache.Shared, 2), renew("a", cache.Exclusive, 3),
		renew("b", cache.Shared, 4), renew("a", cache.Exclusive, 5))
	for _, want := range []int{256, 256, 600 - 2*256 + 2, 2, 1} {
		b := l.Next()
		if len(b.Ops) != want {
			t.Fatalf("a batch of %d ops, not %d", len(b.Ops), want)
		}
		l.Done(b)
	}
	if l.Next() != nil {
		t.Fatal("an op is left")
	}
}

func TestALaneThatGathersSendsNoSmallBatchBesideAnother(t *testing.T) {
	l := upstream.NewLane(2, 64)
	l.Gather()
	next := func(waiting, want int) *upstream.Batch {
		t.Helper()
		for i := range waiting {
			l.Push(op(uint64(i)))
		}
		b := l.Next()
		if got := b; want == 0 && got != nil || want > 0 && (got == nil || len(got.Ops) != want) {
			t.Fatalf("%d wait: %v", waiting, got)
		}
		return b
	}
	for range 50 { // 32 are usual
		l.Done(next(32, 32))
	}
	one := next(1, 1) // no batch is in flight, so nothing waits
	next(20, 0)
	two := next(4, 24)
	next(40, 0) // at most two are in flight
	l.Done(one)
	l.Done(two)
	l.Done(next(0, 40))
}
