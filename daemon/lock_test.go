package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

func acquire(t testing.TB, c *client.Client, a client.AcquireArgs) protocol.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	g, err := c.Acquire(ctx, a)
	if err != nil {
		t.Fatalf("acquire %q: %v", a.Key, err)
	}
	return g
}

func release(t testing.TB, c *client.Client, key string, owner, fence uint64) uint64 {
	t.Helper()
	left, err := c.Release(t.Context(), client.ReleaseArgs{Key: key, Owner: owner, Fence: fence})
	if err != nil {
		t.Fatalf("release %q: %v", key, err)
	}
	return left
}

func TestExclusiveLockExcludesUntilReleased(t *testing.T) {
	h := start(t, nil, nil)
	a, b := h.dial(client.Options{}), h.dial(client.Options{})
	g := acquire(t, a, client.AcquireArgs{Key: "k"})
	if g.Fence == 0 || g.Left == 0 {
		t.Fatalf("grant says too little: %+v", g)
	}
	if _, err := b.Acquire(t.Context(), client.AcquireArgs{Key: "k"}); !errors.Is(err,
		client.ErrBusy) {
		t.Fatalf("try of a held key: %v", err)
	}
	if _, err := b.Acquire(t.Context(), client.AcquireArgs{Key: "k",
		Wait: 10 * time.Millisecond}); !errors.Is(err, client.ErrTimeout) {
		t.Fatalf("bounded wait for a held key: %v", err)
	}
	release(t, a, "k", 0, g.Fence)
	if g2 := acquire(t, b, client.AcquireArgs{Key: "k"}); g2.Fence <= g.Fence {
		t.Fatalf("fence fell: %d after %d", g2.Fence, g.Fence)
	}
}

func TestReleaseHandsOverToTheNextInLineWithALargerFence(t *testing.T) {
	h := start(t, nil, nil)
	first := h.dial(client.Options{})
	g := acquire(t, first, client.AcquireArgs{Key: "k"})
	type got struct {
		n     int
		fence uint64
	}
	grants := make(chan got, 10)
	var wg sync.WaitGroup
	for n := range 10 {
		c := h.dial(client.Options{})
		wg.Go(func() {
			g, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Wait: client.Forever})
			if err != nil {
				t.Error(err)
				return
			}
			grants <- got{n, g.Fence}
			if _, err := c.Release(t.Context(), client.ReleaseArgs{Key: "k", Fence: g.Fence}); err != nil {
				t.Error(err)
			}
		})
		eventually(t, "the waiter queues", func() bool {
			s, err := first.Inspect(t.Context(), "k")
			return err == nil && s.Waiters == uint64(n+1)
		})
	}
	release(t, first, "k", 0, g.Fence)
	wg.Wait()
	last := g.Fence
	for n := range 10 {
		x := <-grants
		if x.n != n {
			t.Errorf("waiter %d was served as number %d", x.n, n)
		}
		if x.fence <= last {
			t.Errorf("fence fell: %d after %d", x.fence, last)
		}
		last = x.fence
	}
}

func TestReentryCountsPerOwner(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	g1 := acquire(t, c, client.AcquireArgs{Key: "k", Owner: 1})
	g2 := acquire(t, c, client.AcquireArgs{Key: "k", Owner: 1})
	if g2.Fence != g1.Fence || g2.Count != 2 {
		t.Fatalf("re-entry: %+v after %+v", g2, g1)
	}
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Owner: 2}); !errors.Is(err,
		client.ErrBusy) {
		t.Fatalf("another owner of the same session: %v", err)
	}
	if left := release(t, c, "k", 1, g1.Fence); left != 1 {
		t.Fatalf("count after one release: %d", left)
	}
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Owner: 2}); !errors.Is(err,
		client.ErrBusy) {
		t.Fatalf("still held once: %v", err)
	}
	release(t, c, "k", 1, g1.Fence)
	acquire(t, c, client.AcquireArgs{Key: "k", Owner: 2})
}

func TestReadersShareAndAWaitingWriterGoesBeforeLaterReaders(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	r1 := acquire(t, c, client.AcquireArgs{Key: "k", Owner: 1, Mode: protocol.Shared})
	r2 := acquire(t, c, client.AcquireArgs{Key: "k", Owner: 2, Mode: protocol.Shared})
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Owner: 1}); !errors.Is(err,
		client.ErrUpgrade) {
		t.Fatalf("upgrade: %v", err)
	}
	writer := make(chan protocol.Grant, 1)
	go func() {
		g, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Owner: 3, Wait: client.Forever})
		if err != nil {
			t.Error(err)
		}
		writer <- g
	}()
	eventually(t, "the writer queues", func() bool {
		s, err := c.Inspect(t.Context(), "k")
		return err == nil && s.Waiters == 1
	})
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Owner: 4,
		Mode: protocol.Shared}); !errors.Is(err, client.ErrBusy) {
		t.Fatalf("a reader overtook a waiting writer: %v", err)
	}
	release(t, c, "k", 1, r1.Fence)
	release(t, c, "k", 2, r2.Fence)
	w := <-writer
	if w.Fence <= r1.Fence {
		t.Fatalf("writer's fence %d after readers' %d", w.Fence, r1.Fence)
	}
	release(t, c, "k", 3, w.Fence)
}

func TestDowngradeLetsReadersIn(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	w := acquire(t, c, client.AcquireArgs{Key: "k", Owner: 1})
	if _, err := c.Downgrade(t.Context(), "k", 1, w.Fence); err != nil {
		t.Fatal(err)
	}
	r := acquire(t, c, client.AcquireArgs{Key: "k", Owner: 2, Mode: protocol.Shared})
	if r.Fence <= w.Fence {
		t.Fatalf("reader's fence %d is not above the writer's %d", r.Fence, w.Fence)
	}
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Owner: 3}); !errors.Is(err,
		client.ErrBusy) {
		t.Fatal(err)
	}
	release(t, c, "k", 1, w.Fence)
	release(t, c, "k", 2, r.Fence)
	acquire(t, c, client.AcquireArgs{Key: "k", Owner: 3})
}

func TestDisconnectReleasesWhatWasHeldAndWithdrawsWhatWaited(t *testing.T) {
	h := start(t, nil, nil)
	a, b := h.dial(client.Options{}), h.dial(client.Options{})
	for n := range 100 {
		acquire(t, a, client.AcquireArgs{Key: fmt.Sprint("k", n)})
	}
	g := acquire(t, b, client.AcquireArgs{Key: "other"})
	go func() { _, _ = a.Acquire(context.Background(), client.AcquireArgs{Key: "other", Wait: client.Forever}) }()
	eventually(t, "a waits", func() bool {
		s, err := b.Inspect(t.Context(), "other")
		return err == nil && s.Waiters == 1
	})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		acquire(t, b, client.AcquireArgs{Key: fmt.Sprint("k", n), Wait: bound})
	}
	eventually(t, "the wait is withdrawn", func() bool {
		s, err := b.Inspect(t.Context(), "other")
		return err == nil && s.Waiters == 0
	})
	release(t, b, "other", 0, g.Fence)
}

func TestStaleReleaseFreesNobodyElse(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	g1 := acquire(t, c, client.AcquireArgs{Key: "k"})
	release(t, c, "k", 0, g1.Fence)
	g2 := acquire(t, c, client.AcquireArgs{Key: "k"})
	if _, err := c.Release(t.Context(), client.ReleaseArgs{Key: "k", Fence: g1.Fence}); !errors.Is(err,
		client.ErrNotHeld) {
		t.Fatalf("release with an old fence: %v", err)
	}
	if s, err := c.Inspect(t.Context(), "k"); err != nil || s.Fence != g2.Fence {
		t.Fatalf("%+v, %v", s, err)
	}
}

func TestAQuietReleaseIsReportedOnlyIfItFails(t *testing.T) {
	h := start(t, nil, nil)
	r := h.raw().hello()
	for id := uint64(10); id < 20; id += 2 {
		r.send(&protocol.Request{Op: protocol.OpAcquire, ID: id, Key: []byte("k")})
		m := r.next()
		g, err := m.Grant()
		if m.ID != id || err != nil {
			t.Fatalf("%+v, %v", m, err)
		}
		r.send(&protocol.Request{Op: protocol.OpRelease, ID: 1, Key: []byte("k"), Fence: g.Fence,
			Flags: protocol.FlagQuiet})
		r.send(&protocol.Request{Op: protocol.OpRelease, ID: 1, Key: []byte("k"), Fence: g.Fence,
			Flags: protocol.FlagQuiet})
		r.send(&protocol.Request{Op: protocol.OpPing, ID: id + 1})
		// The second one of them fails.
		m = r.next()
		key, _, fence, code, text, err := m.ReleaseFailed()
		if m.ID != 0 || m.Event != protocol.EventReleaseFailed || err != nil || key != "k" ||
			fence != g.Fence || code != protocol.NotHeld || text == "" {
			t.Fatalf("%+v: %q, %d, %v, %q, %v", m, key, fence, code, text, err)
		}
		if m := r.next(); m.ID != id+1 {
			t.Fatalf("%+v", m)
		}
	}
	c := h.dial(client.Options{})
	for range 3 {
		g := acquire(t, c, client.AcquireArgs{Key: "k", Wait: bound})
		if err := c.ReleaseQuiet(client.ReleaseArgs{Key: "k", Fence: g.Fence}); err != nil {
			t.Fatal(err)
		}
	}
	acquire(t, h.dial(client.Options{}), client.AcquireArgs{Key: "k", Wait: bound})
}

func TestFixedHoldEndsWithLostAtItsTTL(t *testing.T) {
	h := start(t, nil, nil)
	lost := make(chan client.Lost, 1)
	c := h.dial(client.Options{OnLost: func(l client.Lost) { lost <- l }})
	g := acquire(t, c, client.AcquireArgs{Key: "k", TTL: 150 * time.Millisecond, Fixed: true})
	if g.End == 0 {
		t.Fatal("a fixed hold has no end")
	}
	l := <-lost
	if l.Key != "k" || l.Fence != g.Fence || l.Reason != protocol.LostFixed {
		t.Fatalf("%+v", l)
	}
	acquire(t, c, client.AcquireArgs{Key: "k", Owner: 2})
}

func TestCancelWithdrawsAWait(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "k", Owner: 1})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, client.AcquireArgs{Key: "k", Owner: 2, Wait: client.Forever})
		done <- err
	}()
	eventually(t, "it waits", func() bool {
		s, err := c.Inspect(t.Context(), "k")
		return err == nil && s.Waiters == 1
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if s, err := c.Inspect(t.Context(), "k"); err != nil || s.Waiters != 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	release(t, c, "k", 1, g.Fence)
}

func TestAMultiAcquireIsAllOrNone(t *testing.T) {
	h := start(t, nil, nil)
	a, b := h.dial(client.Options{}), h.dial(client.Options{})
	held := acquire(t, a, client.AcquireArgs{Key: "m"})
	_, err := b.AcquireMany(t.Context(), []string{"z", "m", "a"}, client.AcquireArgs{})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != protocol.Busy || e.Detail != 1 {
		t.Fatalf("%v", err)
	}
	if s, err := b.Inspect(t.Context(), "a"); err != nil || s.Held != protocol.HeldNot {
		t.Fatalf("a is left behind: %+v, %v", s, err)
	}
	release(t, a, "m", 0, held.Fence)
	keys := []string{"z", "m", "a"}
	gs, err := b.AcquireMany(t.Context(), keys, client.AcquireArgs{Wait: time.Second})
	if err != nil || len(gs) != 3 {
		t.Fatal(gs, err)
	}
	codes, err := b.ReleaseMany(t.Context(), append(keys, "no"),
		[]uint64{gs[0].Fence, gs[1].Fence, gs[2].Fence, 1}, client.ReleaseArgs{})
	if err != nil || fmt.Sprint(codes) != "[ok ok ok not_held]" {
		t.Fatal(codes, err)
	}
}

func TestListPagesThroughEverythingOnce(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{Name: "lister"})
	want := map[string]bool{}
	for n := range 500 {
		k := fmt.Sprintf("p/%03d", n)
		acquire(t, c, client.AcquireArgs{Key: k})
		want[k] = true
	}
	acquire(t, c, client.AcquireArgs{Key: "other"})
	after := ""
	for {
		rows, next, err := c.List(t.Context(), "p/", after, 37)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if !want[r.Key] || r.Fence == 0 || r.Client != "lister" {
				t.Fatalf("row %+v", r)
			}
			delete(want, r.Key)
		}
		if next == "" {
			break
		}
		after = next
	}
	if len(want) > 0 {
		t.Fatalf("%d keys are not listed", len(want))
	}
}
