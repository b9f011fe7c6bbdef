package daemon_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// outage is a daemon on two Redis servers, the second for keys that begin with a,
// and, if it is local, for keys that begin with l.
type outage struct {
	*host
	first, second *testserver.Redis
	proxy         *faultproxy.Proxy // before the second
}

func newOutage(t *testing.T, after time.Duration) *outage {
	o := &outage{first: testserver.StartRedis(t), second: testserver.StartRedis(t)}
	var err error
	if o.proxy, err = faultproxy.TCP(o.second.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.proxy.Close() })
	open := func(addr string) upstream.Store {
		cfg, err := redis.Parse("redis://" + addr + "?timeout=2s")
		if err != nil {
			t.Fatal(err)
		}
		s, err := redis.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	second := open(o.proxy.Addr())
	o.host = start(t, open(o.first.Addr()), func(c *daemon.Config) {
		c.Stores = append(c.Stores, daemon.StoreConfig{Name: "second", Store: second, Close: func() {
			_ = second.Close()
		}})
		c.Namespaces = []engine.Namespace{{Store: "store"}, {Prefix: "a", Store: "second"},
			{Prefix: "l", Store: "second", Local: true, LocalAfter: after}}
	})
	return o
}

// refusedAtOnce waits until an acquire that would wait is refused at once.
func (o *outage) refusedAtOnce(c *client.Client, key string) {
	o.t.Helper()
	eventually(o.t, "the store is known to be down", func() bool {
		ctx, cancel := context.WithTimeout(o.t.Context(), 2500*time.Millisecond)
		defer cancel()
		_, err := c.Acquire(ctx, client.AcquireArgs{Key: key, Wait: client.Forever})
		return errors.Is(err, client.ErrUnavailable)
	})
}

func TestAnOutageOfOneStoreDoesNotTouchTheOthers(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testserver.Redis){"killed": (*testserver.Redis).Kill,
		"frozen": (*testserver.Redis).Pause} {
		t.Run(name, func(t *testing.T) {
			o := newOutage(t, time.Second)
			c := o.dial(client.Options{OnLost: func(l client.Lost) { t.Errorf("%+v", l) }})
			acquire(t, c, client.AcquireArgs{Key: "a1", TTL: time.Hour})
			held := acquire(t, c, client.AcquireArgs{Key: "b1"})
			end(o.second)
			if name == "frozen" {
				defer o.second.Resume()
			}
			o.refusedAtOnce(c, "a2")
			g := acquire(t, c, client.AcquireArgs{Key: "b2"})
			release(t, c, "b2", 0, g.Fence)
			release(t, c, "b1", 0, held.Fence)
			// What is held in the store that is down lives on, handoffs included.
			d := o.dial(client.Options{})
			if _, err := d.Acquire(t.Context(), client.AcquireArgs{Key: "a1"}); !errors.Is(err,
				client.ErrBusy) {
				t.Errorf("a try of what is held: %v", err)
			}
			if name == "killed" {
				o.second.Start()
			} else {
				o.second.Resume()
			}
			eventually(t, "the store is used again", func() bool {
				_, err := d.Acquire(t.Context(), client.AcquireArgs{Key: "a2"})
				return err == nil
			})
		})
	}
}

func TestInAnOutageThisHostGrantsAlone(t *testing.T) {
	t.Parallel()
	o := newOutage(t, 50*time.Millisecond)
	lost := make(chan client.Lost, 9)
	c, d := o.dial(client.Options{OnLost: func(l client.Lost) { lost <- l }}), o.dial(client.Options{})
	o.second.Pause()
	defer o.second.Resume()
	o.refusedAtOnce(c, "a") // the other namespace of the same store
	g := acquire(t, c, client.AcquireArgs{Key: "l", Wait: client.Forever, TTL: 5 * time.Second})
	if g.Fence != 0 || g.Flags&protocol.GrantDegraded == 0 || g.Left == 0 || g.Left > 5000 {
		t.Errorf("a grant without the store: %+v", g)
	}
	if again := acquire(t, c, client.AcquireArgs{Key: "l"}); again.Count != 2 ||
		again.Flags&protocol.GrantDegraded == 0 {
		t.Errorf("a re-entry: %+v", again)
	}
	release(t, c, "l", 0, 0)
	if _, err := d.Acquire(t.Context(), client.AcquireArgs{Key: "l"}); !errors.Is(err,
		client.ErrBusy) {
		t.Errorf("another of this host: %v", err)
	}
	// The host hands the key off to another owner, still without the store.
	next := make(chan protocol.Grant, 1)
	go func() {
		g, err := d.Acquire(context.Background(), client.AcquireArgs{Key: "l", Wait: client.Forever,
			TTL: 5 * time.Second})
		if err != nil {
			t.Error(err)
		}
		next <- g
	}()
	eventually(t, "it waits", func() bool {
		s, err := c.Inspect(t.Context(), "l")
		return err == nil && s.Waiters == 1
	})
	release(t, c, "l", 0, 0)
	if g := <-next; g.Flags&protocol.GrantDegraded == 0 {
		t.Errorf("the next one's grant: %+v", g)
	}
	// The store comes back. The daemon acquires the lease for the present holder, and the next holder
	// gets a fence.
	o.second.Resume()
	eventually(t, "the store knows of it", func() bool {
		return o.second.Do("EXISTS", "lock:l") == int64(1)
	})
	waits := make(chan protocol.Grant, 1)
	go func() {
		g, err := c.Acquire(context.Background(), client.AcquireArgs{Key: "l", Wait: client.Forever})
		if err != nil {
			t.Error(err)
		}
		waits <- g
	}()
	release(t, d, "l", 0, 0)
	if g := <-waits; g.Fence == 0 || g.Flags&protocol.GrantDegraded != 0 {
		t.Errorf("after the outage: %+v", g)
	}
	if len(lost) > 0 {
		t.Errorf("lost: %+v", <-lost)
	}
}

// If another host has got the key meanwhile, a degraded hold continues, and the next waiter waits
// for the store.
func TestAfterAnOutageTheStoreDecides(t *testing.T) {
	t.Parallel()
	o := newOutage(t, 50*time.Millisecond)
	c, d := o.dial(client.Options{}), o.dial(client.Options{})
	if err := o.proxy.Refuse(true); err != nil {
		t.Fatal(err)
	}
	o.proxy.Cut()
	o.refusedAtOnce(c, "a")
	acquire(t, c, client.AcquireArgs{Key: "l", Wait: client.Forever, TTL: 5 * time.Second})
	o.second.Do("SET", "lock:l", "another host")
	if err := o.proxy.Refuse(false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store is used again", func() bool {
		_, err := d.Acquire(t.Context(), client.AcquireArgs{Key: "a"})
		return err == nil
	})
	waits := make(chan protocol.Grant, 1)
	go func() {
		g, err := d.Acquire(context.Background(), client.AcquireArgs{Key: "l", Wait: client.Forever})
		if err != nil {
			t.Error(err)
		}
		waits <- g
	}()
	eventually(t, "it waits", func() bool {
		s, err := c.Inspect(t.Context(), "l")
		return err == nil && s.Waiters == 1
	})
	release(t, c, "l", 0, 0)
	select {
	case g := <-waits:
		t.Fatalf("granted beside the other host: %+v", g)
	case <-time.After(100 * time.Millisecond): // it could not be, however long
	}
	o.second.Do("DEL", "lock:l")
	if g := <-waits; g.Fence == 0 {
		t.Errorf("%+v", g)
	}
}
