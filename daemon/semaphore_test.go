package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func permit(n uint32) client.AcquireArgs { return client.AcquireArgs{Key: "k", Permits: n} }

func code(err error) protocol.Code {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Code
	}
	return protocol.OK
}

func TestPermitsOfASemaphore(t *testing.T) {
	h := start(t, nil, nil)
	a, b := h.dial(client.Options{}), h.dial(client.Options{})
	ctx := t.Context()
	var holds []*client.Hold
	for _, c := range []*client.Client{a, a, b} { // one owner has two
		h, err := c.Lock(ctx, permit(3))
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(holds, func(o *client.Hold) bool { return o.Fence() == h.Fence() }) ||
			h.Grant().Count != 1 {
			t.Errorf("grant %+v", h.Grant())
		}
		holds = append(holds, h)
	}
	if _, err := b.Acquire(ctx, permit(3)); code(err) != protocol.Busy {
		t.Errorf("a fourth: %v", err)
	}
	lock, err := b.Acquire(ctx, client.AcquireArgs{Key: "k"})
	if err != nil {
		t.Errorf("the lock of the same key: %v", err)
	}
	if st, err := a.InspectSemaphore(ctx, "k"); err != nil || st.Held != 1 ||
		st.Mode != protocol.Permit || st.Holders != 3 {
		t.Errorf("inspect: %+v, %v", st, err)
	}
	var rows []string
	for after, n := "", 0; n == 0 || after != ""; n++ { // a row a page
		page, next, err := a.List(ctx, "", after, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page {
			rows = append(rows, fmt.Sprint(r.Key, r.Mode, r.Holders))
		}
		after = next
	}
	if want := []string{"kexclusive 1", "kpermit 3"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
	if _, err := b.Downgrade(ctx, "k", 0, holds[2].Fence()); code(err) != protocol.Invalid {
		t.Errorf("downgrade: %v", err)
	}
	if err := holds[2].Renew(ctx, 0); err != nil {
		t.Errorf("renew: %v", err)
	}
	if _, err := b.Release(ctx, client.ReleaseArgs{Key: "k", Fence: lock.Fence}); err != nil {
		t.Error(err)
	}
	// Disconnect is release, of permits too: two of them.
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		args := permit(3)
		args.Wait = client.Forever
		if _, err := b.Acquire(ctx, args); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Acquire(ctx, permit(3)); code(err) != protocol.Busy {
		t.Errorf("a fourth: %v", err)
	}
}

func TestAWithdrawnWaitForAPermit(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	hold, err := c.Lock(t.Context(), permit(1))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		args := permit(1)
		args.Wait = client.Forever
		_, err := c.Acquire(ctx, args)
		done <- err
	}()
	eventually(t, "it waits", func() bool {
		st, err := c.InspectSemaphore(t.Context(), "k")
		return err == nil && st.Waiters == 1
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := hold.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestASemaphoreLetsNoMoreInThanItSays(t *testing.T) {
	t.Run("one host", func(t *testing.T) { crowd(t, start(t, nil, nil)) })
	t.Run("two hosts", func(t *testing.T) {
		server := testserver.StartRedis(t)
		crowd(t, patient(t, server), patient(t, server))
	})
}

// crowd has clients of all hosts pass through one semaphore.
func crowd(t *testing.T, hosts ...*host) {
	const callers, turns, most = 12, 60, 3
	var inside atomic.Int32
	var fences sync.Map
	var wg sync.WaitGroup
	for i := range callers {
		c := hosts[i%len(hosts)].dial(client.Options{})
		wg.Go(func() {
			for range turns {
				args := permit(most)
				args.Wait = client.Forever
				g, err := c.Acquire(t.Context(), args)
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n > most {
					t.Errorf("%d are inside", n)
				}
				if _, twice := fences.LoadOrStore(g.Fence, true); twice {
					t.Errorf("fence %d twice", g.Fence)
				}
				inside.Add(-1)
				if _, err := c.Release(t.Context(), client.ReleaseArgs{Key: "k", Fence: g.Fence}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// unable is a store without semaphores.
type unable struct{ upstream.Store }

func (unable) Capabilities() (none upstream.Capabilities) { return none }

func (u unable) Info() upstream.Info {
	i := u.Store.Info()
	i.Permits = false
	return i
}

func TestAStoreWithoutSemaphoresSaysSo(t *testing.T) {
	h := start(t, unable{embeddedStore(t)}, nil)
	c := h.dial(client.Options{})
	if _, err := c.Acquire(t.Context(), permit(1)); code(err) != protocol.Unsupported {
		t.Error(err)
	}
	if _, err := c.InspectSemaphore(t.Context(), "k"); code(err) != protocol.Unsupported {
		t.Error(err)
	}
}
