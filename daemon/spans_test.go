package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/audit"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

const here = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// traced starts a daemon and returns what it says of acquires, in the order of their ends.
func traced(t *testing.T, change func(*daemon.Config)) (*host, func(n int) []audit.Span) {
	var mu sync.Mutex
	var spans []audit.Span
	h := start(t, nil, func(c *daemon.Config) {
		c.Spans = func(s audit.Span) {
			mu.Lock()
			defer mu.Unlock()
			spans = append(spans, s)
		}
		if change != nil {
			change(c)
		}
	})
	return h, func(n int) (all []audit.Span) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " spans"), func() bool {
			mu.Lock()
			defer mu.Unlock()
			all = slices.Clone(spans)
			return len(all) >= n
		})
		if len(all) > n {
			t.Fatalf("%d spans, want %d: %+v", len(all), n, all)
		}
		return all
	}
}

// Each acquire that says where it stands is a span, however it ends; no other one is.
func TestEveryEndOfATracedAcquireIsASpan(t *testing.T) {
	h, spans := traced(t, func(c *daemon.Config) {
		c.Namespaces = []engine.Namespace{{Store: "store"},
			{Prefix: "own:", Store: "store", Users: []int{1 << 30}}}
	})
	c, ctx := h.dial(client.Options{}), t.Context()
	acquire := func(a client.AcquireArgs) (protocol.Grant, error) {
		a.Traceparent = here
		return c.Acquire(ctx, a)
	}
	g, err := acquire(client.AcquireArgs{Key: "k", Owner: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, no := range []client.AcquireArgs{{Key: "k", Owner: 2},
		{Key: "k", Owner: 2, Wait: time.Millisecond}, {Key: "own:k"}} {
		if _, err := acquire(no); err == nil {
			t.Fatalf("%+v was granted", no)
		}
	}
	if _, err := acquire(client.AcquireArgs{Key: "k", Owner: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Acquire(ctx, client.AcquireArgs{Key: "k", Owner: 3}); !errors.Is(err,
		client.ErrBusy) {
		t.Fatal(err)
	}
	withdrawn, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := c.Acquire(withdrawn, client.AcquireArgs{Key: "k", Owner: 4, Wait: client.Forever,
			Traceparent: here})
		done <- err
	}()
	h.waits(c, "k", 1)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	spans(6) // who is waited for here is not the next one
	gone := h.dial(client.Options{})
	go func() {
		_, err := gone.Acquire(ctx, client.AcquireArgs{Key: "k", Owner: 5, Wait: client.Forever,
			Traceparent: here})
		done <- err
	}()
	h.waits(c, "k", 1)
	_ = gone.Close()
	if err := <-done; err == nil {
		t.Fatal("granted to who has gone")
	}
	spans(7)
	go func() {
		_, err := acquire(client.AcquireArgs{Key: "k", Owner: 6, Wait: client.Forever,
			Mode: protocol.Shared})
		done <- err
	}()
	h.waits(c, "k", 1)
	if _, err := c.Release(ctx, client.ReleaseArgs{Key: "k", Owner: 1, Fence: g.Fence,
		All: true}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	all := spans(8)
	var got []string
	for _, s := range all {
		got = append(got, s.Result)
		if s.Parent.String() != here || s.Store != "store" || s.Keys != 1 || s.Ended.Before(s.Began) {
			t.Errorf("%+v", s)
		}
	}
	want := []string{"granted", "busy", "timeout", "denied", "reentered", "canceled",
		"gone", "granted"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if s := all[0]; s.Key != "k" || s.Namespace != "default" || s.Fence != g.Fence || s.Handoff ||
		s.Mode != cache.Exclusive {
		t.Errorf("%+v", s)
	}
	if s := all[2]; s.Ended.Sub(s.Began) < time.Millisecond {
		t.Errorf("a wait of a millisecond took %v", s.Ended.Sub(s.Began))
	}
	if s := all[3]; s.Key != "own:k" || s.Namespace != "own:" {
		t.Errorf("%+v", s)
	}
	if s := all[7]; !s.Handoff || s.Mode != cache.Shared || s.Fence <= g.Fence {
		t.Errorf("%+v", s)
	}
}

// waits waits until so many wait for a key.
func (h *host) waits(c *client.Client, key string, n uint64) {
	h.t.Helper()
	eventually(h.t, "somebody waits", func() bool {
		s, err := c.Inspect(h.t.Context(), key)
		return err == nil && s.Waiters == n
	})
}

// Many keys are one span, and a log that hides keys hides them here too.
func TestManyKeysAreOneSpan(t *testing.T) {
	h, spans := traced(t, func(c *daemon.Config) { c.Logging.HashKeys = true })
	c, ctx := h.dial(client.Options{}), t.Context()
	g, err := c.AcquireMany(ctx, []string{"b", "a"}, client.AcquireArgs{Owner: 1, Traceparent: here})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.AcquireMany(ctx, []string{"c", "a"},
		client.AcquireArgs{Owner: 2, Traceparent: here}); !errors.Is(err, client.ErrBusy) {
		t.Fatal(err)
	}
	all := spans(2)
	if s := all[0]; s.Result != "granted" || s.Keys != 2 || len(s.Key) != 16 {
		t.Errorf("%+v", s)
	}
	if s := all[1]; s.Result != "busy" || s.Keys != 2 || len(s.Key) != 16 || s.Key == all[0].Key {
		t.Errorf("%+v", s)
	}
	if _, err := c.ReleaseMany(ctx, []string{"b", "a"}, []uint64{g[0].Fence, g[1].Fence},
		client.ReleaseArgs{Owner: 1}); err != nil {
		t.Fatal(err)
	}
}
