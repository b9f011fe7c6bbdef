package upstream_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func op(token uint64) upstream.Op { return upstream.Op{Kind: cache.OpTry, Key: "k", Token: token} }

func TestALaneGathersWhileBatchesAreOutAndKeepsTheOrder(t *testing.T) {
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

// slow is a store that answers when it is let.
type slow struct {
	upstream.Store
	calls atomic.Int64
	let   chan struct{}
}

func (s *slow) Info() upstream.Info { return upstream.Info{} }

func (s *slow) Apply(ctx context.Context, ops []upstream.Op, rs []upstream.Result) error {
	s.calls.Add(1)
	select {
	case <-s.let:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range rs {
		rs[i].Status = cache.Done
	}
	return nil
}

func TestAPumpDeliversEveryOpOnceAndStampsTheTimeBefore(t *testing.T) {
	s := &slow{let: make(chan struct{})}
	var clock atomic.Int64
	var mu sync.Mutex
	seen := map[uint64]int{}
	var all sync.WaitGroup
	all.Add(1000)
	l := upstream.NewLane(2, 64)
	p := upstream.NewPump(s, func() int64 { return clock.Add(1) }, func(b *upstream.Batch) {
		if b.Sent == 0 || b.Sent > clock.Load() {
			t.Error("sent at", b.Sent)
		}
		mu.Lock()
		for i, o := range b.Ops {
			if b.Results[i].Status != cache.Done {
				t.Error(b.Results[i])
			}
			seen[o.Token]++
			all.Done()
		}
		mu.Unlock()
	}, func(err error) { t.Error(err) })
	p.Run(l)
	for i := range uint64(1000) {
		l.Push(op(i + 1))
		l.Kick()
	}
	close(s.let)
	all.Wait()
	p.Close()
	for i := range uint64(1000) {
		if seen[i+1] != 1 {
			t.Fatalf("op %d was delivered %d times", i+1, seen[i+1])
		}
	}
}

func TestClosingAPumpAnswersWhatIsInFlightAmbiguously(t *testing.T) {
	s := &slow{let: make(chan struct{})}
	got := make(chan cache.Status, 1)
	l := upstream.NewLane(1, 64)
	p := upstream.NewPump(s, func() int64 { return 1 }, func(b *upstream.Batch) { got <- b.Results[0].Status }, func(error) {})
	p.Run(l)
	l.Push(op(1))
	l.Kick()
	for s.calls.Load() == 0 {
		runtime.Gosched()
	}
	p.Close()
	if st := <-got; st != cache.Unknown {
		t.Fatal(st)
	}
}
