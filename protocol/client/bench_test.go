package client

import (
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

func granting(b []byte, q *protocol.Request) []byte {
	if q.Op == protocol.OpAcquire {
		return protocol.AppendGrant(b, q.ID, &protocol.Grant{Fence: 1 << 50, Left: 30000,
			Deadline: 1 << 40, Count: 1})
	}
	return protocol.AppendReleased(b, q.ID, 0)
}

func BenchmarkPair(b *testing.B) {
	c, p := connect(b, Options{}, 0)
	p.serve(granting)
	b.ReportAllocs()
	for b.Loop() {
		g, err := c.Acquire(b.Context(), AcquireArgs{Key: "key", Owner: 1})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Release(b.Context(), ReleaseArgs{Key: "key", Owner: 1,
			Fence: g.Fence}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPair64Callers(b *testing.B) {
	c, p := connect(b, Options{}, 0)
	p.serve(granting)
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			g, err := c.Acquire(b.Context(), AcquireArgs{Key: "key", Owner: 1})
			if err != nil {
				b.Error(err)
				return
			}
			if _, err := c.Release(b.Context(), ReleaseArgs{Key: "key", Owner: 1,
				Fence: g.Fence}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func TestPairAllocatesNothing(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	p.serve(granting)
	n := testing.AllocsPerRun(200, func() {
		g, err := c.Acquire(t.Context(), AcquireArgs{Key: "key", Owner: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Release(t.Context(), ReleaseArgs{Key: "key", Owner: 1,
			Fence: g.Fence}); err != nil {
			t.Fatal(err)
		}
	})
	// Under the race detector, sync.Pool drops entries at random, and the count includes the
	// allocations of the peer.
	if n > 4 {
		t.Errorf("%v allocations", n)
	}
}
