package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream"
)

// hangs is two stores, one of which hangs once hung is set: what ends a lease is sent, and is not
// answered until then.
type hangs struct {
	upstream.Store
	hung  atomic.Bool
	sent  atomic.Int64  // of what ends leases, while it hangs
	ended atomic.Int64  // of that, what the store has carried out
	takes time.Duration // how long the store that is there takes for that; 0 if none is
}

func (*hangs) Capabilities() (none upstream.Capabilities) { return none }

func (s *hangs) Info() upstream.Info {
	i := s.Store.Info()
	i.Pair, i.Timeout = true, 11*time.Second // as of Redis and etcd with their defaults
	return i
}

func (s *hangs) Ping(context.Context) error {
	if s.hung.Load() {
		return fmt.Errorf("%w: no answer", upstream.ErrDown)
	}
	return nil
}

func (s *hangs) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	if !s.hung.Load() {
		return s.Store.Apply(ctx, ops, results)
	}
	down := fmt.Errorf("%w: no answer", upstream.ErrDown)
	if !ops[0].Kind.Ends() { // the store that is asked first refuses it
		return down
	}
	s.sent.Add(1)
	if s.takes > 0 {
		select {
		case <-ctx.Done():
			return down
		case <-time.After(s.takes):
			s.ended.Add(1)
		}
	}
	for s.hung.Load() {
		select {
		case <-ctx.Done():
			return down
		case <-time.After(time.Millisecond):
		}
	}
	return s.Store.Apply(ctx, ops, results)
}

// goDown has it hang, and waits until the daemon knows. c holds nothing under the key other.
func (s *hangs) goDown(h *host, c *client.Client) {
	h.t.Helper()
	s.hung.Store(true)
	eventually(h.t, "the pair is known to be down", func() bool {
		_, err := c.Acquire(h.t.Context(), client.AcquireArgs{Key: "other"})
		return err != nil && h.d.Engine().Stores()[0].Down() != nil
	})
}

// One of two stores hangs, and a lock that is in both has been released. Another process can take
// over all the same, as it can while a single store is down.
func TestATakeoverWhileOneOfTwoStoresHangs(t *testing.T) {
	s := &hangs{Store: embeddedStore(t)}
	h := start(t, s, nil)
	defer s.hung.Store(false)
	c := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "k", TTL: 30 * time.Second})
	s.goDown(h, c)
	if _, err := c.Release(t.Context(), client.ReleaseArgs{Key: "k", Fence: g.Fence}); !errors.Is(err,
		client.ErrUnknown) {
		t.Fatal(err)
	}
	eventually(t, "the release is sent", func() bool { return s.sent.Load() > 0 })
	for range 3 {
		began := time.Now()
		if err := h.d.Park(func([]int) error { return errKeep }); !errors.Is(err, errKeep) {
			t.Errorf("nothing is passed on, and nobody was served for %v: %v", time.Since(began), err)
		}
	}
}

// A daemon that ends waits up to two seconds for a store to confirm the releases. It does so, too,
// if only one store of a pair can be reached.
func TestADaemonThatEndsReleasesInTheStoreThatIsThere(t *testing.T) {
	t.Parallel()
	for _, down := range []bool{false, true} {
		s := &hangs{Store: embeddedStore(t), takes: 100 * time.Millisecond}
		h := start(t, s, nil)
		c := h.dial(client.Options{})
		acquire(t, c, client.AcquireArgs{Key: "k", TTL: 30 * time.Second})
		if down {
			s.goDown(h, c)
		} else {
			s.hung.Store(true) // only batches hang
		}
		_ = c.Close()
		eventually(t, "the release is sent", func() bool { return s.sent.Load() > 0 })
		h.stop()
		if err := <-h.done; err != nil {
			t.Fatal(err)
		}
		h.done <- nil
		if s.ended.Load() == 0 {
			t.Errorf("known to be down %v: the daemon has ended while the release was on its way", down)
		}
		s.hung.Store(false)
	}
}

// stuck is a store that hangs once hung is set. It does not answer what ends leases, and fails
// everything else.
type stuck struct{ hangs }

func (s *stuck) Info() upstream.Info {
	i := s.Store.Info()
	i.Timeout, i.Session = 11*time.Second, 0
	return i
}

func (s *stuck) Sessions() <-chan upstream.Session { return nil }

// A release-many waits behind two releases that are on their way to a store that hangs. Another
// process can take over.
func TestATakeoverWhileAReleaseManyWaitsForAStoreThatHangs(t *testing.T) {
	s := &stuck{hangs{Store: embeddedStore(t)}}
	h := start(t, s, nil)
	c := h.dial(client.Options{})
	var keys []string
	var fences []uint64
	for i := range 5 {
		keys = append(keys, fmt.Sprint("k", i))
		fences = append(fences, acquire(t, c, client.AcquireArgs{Key: keys[i],
			TTL: 60 * time.Second}).Fence)
	}
	main := h.d.Engine().Stores()[0].Main()
	s.hung.Store(true)
	defer s.hung.Store(false)
	for i := range 2 {
		go func() { _, _ = c.Release(t.Context(), client.ReleaseArgs{Key: keys[i], Fence: fences[i]}) }()
		eventually(t, "the release is sent", func() bool { return s.sent.Load() == int64(i+1) })
	}
	go func() { _, _ = c.ReleaseMany(t.Context(), keys[2:4], fences[2:4], client.ReleaseArgs{}) }()
	eventually(t, "the release-many waits", func() bool { w, _ := main.Depth(); return w == 2 })
	// it has a lane of its own, and so the pinger hears of it
	go func() { _, _ = c.Renew(t.Context(), keys[4], 0, fences[4], time.Minute) }()
	eventually(t, "the store is known to be down", func() bool {
		return h.d.Engine().Stores()[0].Down() != nil
	})
	for range 3 {
		if err := h.d.Park(func([]int) error { return errKeep }); !errors.Is(err, errKeep) {
			t.Error(err)
		}
	}
}
