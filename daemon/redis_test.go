package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// startRedis runs a daemon on the Redis at the URL.
func startRedis(t testing.TB, url string) *host {
	t.Helper()
	return startRedisWith(t, url, nil)
}

func startRedisWith(t testing.TB, url string, change func(*daemon.Config)) *host {
	t.Helper()
	cfg, err := redis.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, s, change)
}

// patient runs a daemon on a server that is given more time than by default: a busy machine
// stands still for longer.
func patient(t testing.TB, server *testserver.Redis) *host {
	t.Helper()
	return startRedis(t, server.URL()+"?timeout=10s")
}

// proxied runs a daemon whose connections to the server go through a proxy.
func proxied(t testing.TB, server *testserver.Redis) (*host, *faultproxy.Proxy) {
	t.Helper()
	p, err := faultproxy.TCP(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return startRedis(t, "redis://"+p.Addr()), p
}

func TestTwoHostsOnOneRedisExcludeEachOtherInOrder(t *testing.T) {
	server := testserver.StartRedis(t)
	var hosts []*host
	for range 3 {
		hosts = append(hosts, patient(t, server))
	}
	first := hosts[0].dial(client.Options{})
	g := acquire(t, first, client.AcquireArgs{Key: "k"})
	type got struct {
		n     int
		fence uint64
	}
	grants := make(chan got, 6)
	var wg sync.WaitGroup
	for n := range 6 {
		c := hosts[1+n%2].dial(client.Options{})
		wg.Go(func() {
			g, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Wait: bound})
			if err != nil {
				t.Error(err)
				return
			}
			grants <- got{n, g.Fence}
			if _, err := c.Release(t.Context(), client.ReleaseArgs{Key: "k", Fence: g.Fence}); err != nil {
				t.Error(err)
			}
		})
		eventually(t, "it queues", func() bool {
			s, err := c.Inspect(t.Context(), "k")
			return err == nil && s.Held == protocol.HeldThere && s.Waiters == uint64(n/2+1)
		})
	}
	// A try finds somebody before it, on every host.
	if _, err := hosts[0].dial(client.Options{}).Acquire(t.Context(),
		client.AcquireArgs{Key: "k"}); !errors.Is(err, client.ErrBusy) {
		t.Fatal(err)
	}
	release(t, first, "k", 0, g.Fence)
	wg.Wait()
	close(grants)
	last := g.Fence
	for x := range grants {
		if x.fence <= last {
			t.Errorf("fence %d after %d", x.fence, last)
		}
		last = x.fence
	}
	left := server.Do("KEYS", "lock:*")
	if fmt.Sprint(left) != "[]" {
		t.Errorf("left in the store: %v", left)
	}
}

// A host cut off from the store tells its holder before anybody else can have
// the key.
func TestAHolderCutOffIsToldBeforeAnotherHostIsGranted(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	h, proxy := proxied(t, server)
	o := patient(t, server)
	var mu sync.Mutex
	var stated, toldAt int64
	lost := make(chan client.Lost, 1)
	c := h.dial(client.Options{
		OnKeepalive: func(b client.Keepalive) {
			mu.Lock()
			defer mu.Unlock()
			stated = max(stated, int64(b.Until))
		},
		OnLost: func(l client.Lost) {
			mu.Lock()
			defer mu.Unlock()
			toldAt = renewer.Boottime()
			lost <- l
		},
	})
	g := acquire(t, c, client.AcquireArgs{Key: "k", TTL: 2 * time.Second})
	mu.Lock()
	stated = max(stated, int64(g.Deadline))
	mu.Unlock()
	proxy.BlackHole(faultproxy.Both, true)
	other := o.dial(client.Options{})
	g2 := acquire(t, other, client.AcquireArgs{Key: "k", Wait: bound})
	at := renewer.Boottime()
	l := <-lost
	mu.Lock()
	defer mu.Unlock()
	if l.Reason != protocol.LostExpired || l.Fence != g.Fence {
		t.Errorf("%+v", l)
	}
	if valid := stated * int64(time.Millisecond); at < valid {
		t.Errorf("granted %v before the first holder's stated validity was over", time.Duration(valid-at))
	}
	if toldAt > at {
		// a busy machine: validity is what counts
		t.Logf("told %v after the other's grant", time.Duration(toldAt-at))
	}
	if g2.Fence <= g.Fence {
		t.Errorf("fence %d after %d", g2.Fence, g.Fence)
	}
}

func TestAFlushedStoreLosesLocksAndSaysSo(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	h := patient(t, server)
	lost := make(chan client.Lost, 1)
	c := h.dial(client.Options{OnLost: func(l client.Lost) { lost <- l }})
	g := acquire(t, c, client.AcquireArgs{Key: "k", TTL: 6 * time.Second})
	server.Do("FLUSHALL")
	if l := <-lost; l.Reason != protocol.LostGone || l.Fence != g.Fence {
		t.Fatalf("%+v", l)
	}
	if g2 := acquire(t, c, client.AcquireArgs{Key: "k", Wait: bound}); g2.Fence <= g.Fence {
		t.Fatalf("fence %d after %d", g2.Fence, g.Fence)
	}
}

// The lock is released before a renewal finds that the store has forgotten it.
func TestALockThatIsFoundGoneAtItsReleaseIsCountedAndLogged(t *testing.T) {
	server := testserver.StartRedis(t)
	core, seen := observer.New(zap.WarnLevel)
	h := startRedisWith(t, server.URL()+"?timeout=10s", func(c *daemon.Config) {
		c.Log = zap.New(core)
	})
	c := h.dial(client.Options{Name: "prog"})
	kept := acquire(t, c, client.AcquireArgs{Key: "kept", TTL: 10 * time.Minute})
	release(t, c, "kept", 0, kept.Fence)
	for n, args := range []client.ReleaseArgs{{Key: "k"}, {Key: "async", Async: true}} {
		args.Fence = acquire(t, c, client.AcquireArgs{Key: args.Key, TTL: 10 * time.Minute}).Fence
		server.Do("FLUSHALL")
		if _, err := c.Release(t.Context(), args); !args.Async && !errors.Is(err, client.ErrNotHeld) ||
			args.Async && err != nil {
			t.Errorf("%s: %v", args.Key, err)
		}
		eventually(t, "it is logged", func() bool {
			return seen.FilterField(zap.String("event", "lost")).Len() > n
		})
		got := seen.FilterField(zap.String("event", "lost")).All()[n].ContextMap()
		for k, v := range map[string]any{"key": args.Key, "fence": args.Fence, "reason": "gone",
			"released": true, "client": "prog"} {
			if got[k] != v {
				t.Errorf("%s: %s is %v, want %v", args.Key, k, got[k], v)
			}
		}
	}
	if n := series(t, h.metrics(), "lost_total", "default", "gone").GetCounter().GetValue(); n != 2 {
		t.Errorf("%v are counted as lost", n)
	}
}

func TestAHoldSurvivesAShortOutageAndARestartWithItsData(t *testing.T) {
	server := testserver.StartRedis(t)
	h, proxy := proxied(t, server)
	c := h.dial(client.Options{OnLost: func(l client.Lost) { t.Errorf("lost: %+v", l) }})
	g := acquire(t, c, client.AcquireArgs{Key: "k", TTL: 5 * time.Second})
	server.Do("SET", "lock:third", "somebody", "PX", 600_000)
	waits := make(chan error, 1)
	go func() {
		_, err := c.Acquire(context.Background(), client.AcquireArgs{Key: "third", Wait: bound})
		waits <- err
	}()
	eventually(t, "it waits in the store", func() bool {
		return server.Do("EXISTS", "locksidecar:{}:queued") == int64(1)
	})
	if err := proxy.Refuse(true); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "other"}); !errors.Is(err,
		client.ErrUnavailable) {
		t.Fatalf("a try without a store: %v", err)
	}
	server.Do("DEL", "lock:third")
	if err := proxy.Refuse(false); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; err != nil {
		t.Fatalf("a waiter over a short outage: %v", err)
	}
	// Two renewals on, the hold is still there.
	eventually(t, "it is renewed", func() bool {
		s, err := c.Inspect(t.Context(), "k")
		return err == nil && s.Left > 4000
	})
	release(t, c, "k", 0, g.Fence)
}

func TestAReleaseThatTheStoreDidNotConfirmIsUnknownAndSettledLater(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	h, proxy := proxied(t, server)
	c := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "k"})
	proxy.BlackHole(faultproxy.ToClient, true)
	if _, err := c.Release(t.Context(), client.ReleaseArgs{Key: "k", Fence: g.Fence}); !errors.Is(err,
		client.ErrUnknown) {
		t.Fatal(err)
	}
	if err := proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	// Until the daemon has a connection again, it refuses acquires at once.
	var err error
	eventually(t, "the store is used again", func() bool {
		_, err = c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Wait: bound})
		return !errors.Is(err, client.ErrUnavailable)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A daemon that is ending still waits for its store; the one that comes after it
// must neither serve before that nor lose its socket to it.
func TestASuccessorServesOnceTheDaemonBeforeItHasEnded(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	h, proxy := proxied(t, server)
	c := h.dial(client.Options{})
	acquire(t, c, client.AcquireArgs{Key: "k"})
	proxy.BlackHole(faultproxy.ToClient, true)
	_ = c.Close() // the release will not be confirmed
	eventually(t, "the session has ended", func() bool { return h.d.Engine().Residue().Sessions == 0 })
	h.stop()
	next := memory(t, "")
	var after *daemon.Daemon
	eventually(t, "another may serve", func() (ok bool) {
		var err error
		if after, err = daemon.Listen(daemon.Config{Socket: h.socket,
			Serving: serving(next)}); err != nil && !errors.Is(err, daemon.ErrInUse) {
			t.Fatal(err)
		}
		return err == nil
	})
	if err := <-h.done; err != nil {
		t.Error(err)
	}
	h.done <- nil
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- after.Serve(ctx) }()
	if c, err := client.Dial(t.Context(), h.socket, client.Options{}); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}

func TestThousandsOfLocksAreRenewedInBatches(t *testing.T) {
	server := testserver.StartRedis(t)
	h := patient(t, server)
	c := h.dial(client.Options{OnLost: func(l client.Lost) { t.Errorf("lost: %+v", l) }})
	const n = 3000
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		_, err := c.Go(&protocol.Request{Op: protocol.OpAcquire, Key: fmt.Appendf(nil, "k%d", i),
			TTL: 12000}, func(r *client.Reply) {
			defer wg.Done()
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	// The watchdog renews each long before its end.
	ttl := func(i int) int64 { return server.Do("PTTL", fmt.Sprint("lock:k", i)).(int64) }
	for _, i := range []int{0, 17, n - 1} {
		last := ttl(i)
		eventually(t, "it is renewed", func() bool {
			now := ttl(i)
			if now <= 0 {
				t.Fatalf("PTTL %d", now)
			}
			renewed := now > last
			last = now
			return renewed
		})
	}
	if held := server.Do("DBSIZE").(int64); held < n {
		t.Fatalf("%d keys left", held)
	}
	_ = c.Close()
	eventually(t, "all are released", func() bool {
		return fmt.Sprint(server.Do("KEYS", "lock:*")) == "[]"
	})
}
