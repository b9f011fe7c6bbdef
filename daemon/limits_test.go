package daemon_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// limited is refused for a limit, and the text says whose.
func limited(t testing.TB, c *client.Client, a client.AcquireArgs, whose string) {
	t.Helper()
	if _, err := c.Acquire(t.Context(), a); !errors.Is(err, client.ErrLimit) ||
		!strings.Contains(err.Error(), whose) {
		t.Fatalf("%+v: %v, and not a limit of %q", a, err, whose)
	}
}

// waitFor has an acquire wait; its end comes on the channel.
func waitFor(t testing.TB, c *client.Client, key string) <-chan error {
	t.Helper()
	s, err := c.Inspect(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	if _, err := c.Go(&protocol.Request{Op: protocol.OpAcquire, Key: []byte(key), Owner: c.NewOwner(),
		Wait: protocol.WaitAlways},
		func(r *client.Reply) { done <- r.Err }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it waits", func() bool {
		now, err := c.Inspect(t.Context(), key)
		return err == nil && now.Waiters > s.Waiters
	})
	return done
}

func TestLimitsOfAUserCountAllItsConnections(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) { c.Limits.Users = engine.UserLimits{Conns: 3, Holds: 3, Waiters: 2} })
	a, b, c := h.dial(client.Options{}), h.dial(client.Options{}), h.dial(client.Options{})
	h.raw().fatal(protocol.Limit)

	acquire(t, a, client.AcquireArgs{Key: "a"})
	acquire(t, a, client.AcquireArgs{Key: "b"})
	x := waitFor(t, b, "a")
	y := waitFor(t, c, "b")
	limited(t, c, client.AcquireArgs{Key: "a", Wait: time.Second}, "user")
	limited(t, c, client.AcquireArgs{Key: "other"}, "user")
	if err := h.d.Reload(serving(h.store)); err != nil { // which has no limits
		t.Fatal(err)
	}
	g := acquire(t, c, client.AcquireArgs{Key: "other"})
	next := serving(h.store)
	next.Limits.Users = engine.UserLimits{Conns: 3, Holds: 3, Waiters: 10}
	if err := h.d.Reload(next); err != nil {
		t.Fatal(err)
	}
	limited(t, b, client.AcquireArgs{Key: "more"}, "user")
	release(t, c, "other", 0, g.Fence)

	// What a connection had comes back with its end; those who wait get their turn.
	_ = a.Close()
	for _, done := range []<-chan error{x, y} {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a place comes free", func() bool {
		d, err := client.Dial(t.Context(), h.socket, client.Options{})
		if err != nil {
			return false
		}
		defer d.Close()
		_, err = d.Acquire(t.Context(), client.AcquireArgs{Key: "third"})
		return err == nil
	})
}

// A waiter that queued below the limit is not granted a hold above it.
func TestALimitOfHoldsIsOneOfGrants(t *testing.T) {
	spaceLimit := func(c *daemon.Config) { c.Namespaces = []engine.Namespace{{Store: "store", MaxHolds: 5}} }
	for whose, change := range map[string]func(*daemon.Config){
		"session":   func(c *daemon.Config) { c.Limits.MaxHolds = 2 },
		"user":      func(c *daemon.Config) { c.Limits.Users.Holds = 5 },
		"namespace": spaceLimit,
	} {
		t.Run(whose, func(t *testing.T) {
			h := start(t, nil, change)
			var holders []*client.Client
			waiter := h.dial(client.Options{})
			for n := range 4 {
				holders = append(holders, h.dial(client.Options{}))
				acquire(t, holders[n], client.AcquireArgs{Key: fmt.Sprint(n)})
			}
			done := make(chan error, 4)
			for n := range 4 {
				if whose == "session" || n == 0 {
					go func(one <-chan error) { done <- <-one }(waitFor(t, waiter, fmt.Sprint(n)))
				}
			}
			// four are held: the fifth is somebody's, and the one that waits gets none
			if whose != "session" {
				acquire(t, holders[0], client.AcquireArgs{Key: "fifth"})
				next := serving(h.store)
				next.Limits.Users.Holds, next.Namespaces = 2, []engine.Namespace{{Store: "store", MaxHolds: 2}}
				if whose == "user" {
					next.Namespaces = nil
				} else {
					next.Limits.Users.Holds = 0
				}
				if err := h.d.Reload(next); err != nil {
					t.Fatal(err)
				}
				_ = holders[0].Close()
				if err := <-done; !errors.Is(err, client.ErrLimit) || !strings.Contains(err.Error(), whose) {
					t.Fatal(err)
				}
				return
			}
			granted := 0
			for n := range 4 {
				_ = holders[n].Close()
				if err := <-done; err == nil {
					granted++
				} else if !errors.Is(err, client.ErrLimit) || !strings.Contains(err.Error(), whose) {
					t.Fatal(err)
				}
			}
			if granted != 2 {
				t.Errorf("%d are granted", granted)
			}
		})
	}
}

// stalled runs a daemon on a Redis that does not answer until the proxy resumes.
func stalled(t *testing.T, change func(*daemon.Config)) (*host, *faultproxy.Proxy) {
	t.Helper()
	p, err := faultproxy.TCP(testserver.StartRedis(t).Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	cfg, err := redis.Parse("redis://" + p.Addr() + "?timeout=30s")
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := start(t, s, change)
	acquire(t, h.dial(client.Options{}), client.AcquireArgs{Key: "reached"})
	p.Stall(faultproxy.ToClient, true)
	return h, p
}

// answers reads replies until those with ids from first on are there, and counts their codes.
func (r *raw) answers(first uint64, n int) map[protocol.Code]int {
	r.t.Helper()
	codes := make(map[protocol.Code]int)
	for n > 0 {
		if m := r.next(); m.ID >= first {
			codes[m.Code]++
			n--
		}
	}
	return codes
}

// What a client withdraws, or leaves behind, a store has to answer all the same: it does not make
// room for more.
func TestWhatAStoreHasYetToAnswerCounts(t *testing.T) {
	h, p := stalled(t, func(c *daemon.Config) { c.Limits.MaxWaiters, c.Limits.Users.Waiters = 50, 100 })
	for i, want := range []int{50, 50, 0} { // the third connection finds its user's room used up
		r := h.raw().hello()
		for n := range uint64(200) {
			key := fmt.Appendf(nil, "%d-%d", i, n)
			r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 1000 + n, Key: key,
				Wait: protocol.WaitAlways})
			r.send(&protocol.Request{Op: protocol.OpCancel, ID: 2, Target: 1000 + n, Key: key})
		}
		if got := r.answers(1000, 200); got[protocol.Canceled] != want ||
			got[protocol.Limit] != 200-want {
			t.Fatalf("%v, and not %d canceled; %v", got, want, h.d.Engine().Residue())
		}
		_ = r.Close()
	}
	r := h.raw().hello()
	r.send(&protocol.Request{Op: protocol.OpInspect, ID: 1000, Key: []byte("k")})
	if got := r.answers(1000, 1); got[protocol.Limit] != 1 {
		t.Errorf("an inspect: %v", got)
	}
	if left := h.d.Engine().Residue(); left.Asks != 100 || left.Keys > 101 || left.Waiting > 101 {
		t.Errorf("%v", left)
	}
	p.Stall(faultproxy.ToClient, false)
	h.hasRoomAgain()
}

// hasRoomAgain waits until the store has answered so much that there is room for one who waits.
func (h *host) hasRoomAgain() {
	h.t.Helper()
	c := h.dial(client.Options{})
	eventually(h.t, "there is room again", func() bool {
		_, err := c.Acquire(h.t.Context(), client.AcquireArgs{Key: "k", Wait: bound})
		if err != nil && !errors.Is(err, client.ErrLimit) {
			h.t.Fatal(err)
		}
		return err == nil
	})
}

// Inspections and renewals are not acquires, and have their bound all the same.
func TestQuestionsToAStoreAreBounded(t *testing.T) {
	h, p := stalled(t, func(c *daemon.Config) { c.Limits.MaxWaiters = 50 })
	for _, same := range []bool{true, false} {
		r := h.raw().hello()
		for n := range uint64(200) {
			key := []byte("k")
			if !same {
				key = fmt.Append(key, n)
			}
			r.send(&protocol.Request{Op: protocol.OpInspect, ID: 1000 + n, Key: key})
		}
		if got := r.answers(1000, 150); got[protocol.Limit] != 150 {
			t.Errorf("inspects of the same key: %v: %v", same, got)
		}
	}
	r := h.raw().hello()
	for n := range uint64(200) {
		r.send(&protocol.Request{Op: protocol.OpStored, ID: 1000 + n, Limit: 1})
	}
	if got := r.answers(1000, 192); got[protocol.Limit] != 192 {
		t.Errorf("pages of what the store knows: %v", got)
	}

	p.Stall(faultproxy.ToClient, false)
	r = h.raw().hello()
	r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte("mine")})
	m := r.next()
	g, err := m.Grant()
	if err != nil {
		t.Fatal(err)
	}
	p.Stall(faultproxy.ToClient, true)
	for n := range uint64(200) {
		r.send(&protocol.Request{Op: protocol.OpRenew, ID: 1000 + n, Key: []byte("mine"), Fence: g.Fence})
	}
	if got := r.answers(1000, 150); got[protocol.Limit] != 150 {
		t.Errorf("renewals: %v", got)
	}
	p.Stall(faultproxy.ToClient, false)
	if got := r.answers(1000, 50); got[protocol.OK] != 50 {
		t.Errorf("renewals that were taken: %v", got)
	}
}

// An acquire-many that is withdrawn again and again keeps a bounded number of those who ask.
func TestCancelsOfOneRequestAreBounded(t *testing.T) {
	h, p := stalled(t, nil)
	r := h.raw().hello()
	r.send(&protocol.Request{Op: protocol.OpAcquireMany, ID: 2,
		Keys: [][]byte{[]byte("a"), []byte("b")}, Wait: protocol.WaitAlways})
	for n := range uint64(100) {
		r.send(&protocol.Request{Op: protocol.OpCancel, ID: 1000 + n, Target: 2, Key: []byte("a")})
	}
	if got := r.answers(1000, 84); got[protocol.Limit] != 84 {
		t.Errorf("%v", got)
	}
	p.Stall(faultproxy.ToClient, false)
	if got := r.answers(2, 17); got[protocol.Canceled] != 1 || got[protocol.OK] != 16 {
		t.Errorf("%v", got)
	}
}
