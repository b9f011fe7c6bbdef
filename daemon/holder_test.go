package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// named runs a daemon under a name on a Redis.
func named(t testing.TB, server *testserver.Redis, name string, change func(*daemon.Config)) *host {
	t.Helper()
	cfg, err := redis.Parse(server.URL() + "?timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, s, func(c *daemon.Config) {
		if c.Host = name; change != nil {
			change(c)
		}
	})
}

// holders asks for the holders of a key.
func holders(t testing.TB, c *client.Client, key string, mode protocol.Mode) protocol.State {
	t.Helper()
	st, err := c.InspectHolders(t.Context(), key, mode)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// heldBy waits until a key's holders have these names.
func heldBy(t testing.TB, c *client.Client, key string, mode protocol.Mode,
	want string) (st protocol.State) {
	t.Helper()
	eventually(t, key+" is held by "+want, func() bool {
		st = holders(t, c, key, mode)
		return protocol.Holders(st.By) == want
	})
	return st
}

func registrations(t testing.TB, server *testserver.Redis) []string {
	t.Helper()
	names, err := server.Admin().Keys(t.Context(), "locksidecar:{}:daemon:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestTheHolderIsNamedOnEveryHost(t *testing.T) {
	server := testserver.StartRedis(t)
	h1, h2 := named(t, server, "web-1", nil), named(t, server, "web-2", nil)
	c1, c2 := h1.dial(client.Options{Name: "backup", Label: "nightly"}),
		h2.dial(client.Options{Name: "other"})

	if st := holders(t, c2, "k", protocol.Exclusive); st.Held != protocol.HeldNot || len(st.By) != 0 {
		t.Errorf("free: %+v", st)
	}
	g := acquire(t, c1, client.AcquireArgs{Key: "k"})
	st := heldBy(t, c2, "k", protocol.Exclusive, "web-1")
	if by := st.By[0]; st.Held != protocol.HeldThere || st.Left <= 0 ||
		by.Kind != protocol.HolderDaemon || by.Daemon != uint64(os.Getpid()) ||
		by.Version != "test" || by.Started == 0 || by.PID != 0 || by.Client != "" ||
		by.Fence != 0 || by.UID != -1 {
		t.Errorf("elsewhere: %+v", st)
	}
	st = holders(t, c1, "k", protocol.Exclusive)
	if len(st.By) != 1 {
		t.Fatalf("here: %+v", st)
	}
	if by := st.By[0]; st.Held != protocol.HeldHere || st.Fence != g.Fence ||
		by.Kind != protocol.HolderHere || by.Host != "web-1" ||
		by.PID != uint64(os.Getpid()) || by.UID != int64(os.Getuid()) || by.Client != "backup/nightly" ||
		by.Fence != g.Fence || by.Held < 0 || by.Session == 0 {
		t.Errorf("here: %+v", st)
	}

	// Readers and permits of several hosts.
	acquire(t, c1, client.AcquireArgs{Key: "r", Mode: protocol.Shared})
	acquire(t, c2, client.AcquireArgs{Key: "r", Mode: protocol.Shared})
	acquire(t, c1, client.AcquireArgs{Key: "s", Mode: protocol.Permit, Permits: 3})
	for _, c := range []*client.Client{c1, c2} {
		heldBy(t, c, "s", protocol.Permit, map[bool]string{true: "process " + pid() + " (backup/nightly)",
			false: "web-1"}[c == c1])
	}
	if st := heldBy(t, c2, "r", protocol.Exclusive,
		"process "+pid()+" (other), web-1"); st.Held != protocol.HeldHere || st.Mode != protocol.Shared {
		t.Errorf("readers: %+v", st)
	}

	// A listing of the store, and what clients wait for.
	for r, err := range c2.AllStored(t.Context(), "k") {
		if err != nil || len(r.By) != 1 || r.By[0].Host != "web-1" {
			t.Errorf("stored: %+v, %v", r, err)
		}
	}
	h2.queue(c2, "k", 7, time.Minute)
	eventually(t, "the view names the holder", func() bool {
		v := h2.view(engine.ViewQuery{Prefix: "k"})
		return len(v.Waiters) == 1 && v.Waiters[0].Behind == nil && v.Waiters[0].Holder != nil &&
			v.Waiters[0].Holder.Host == "web-1"
	})
}

// The time of a holder on another host counts from the grant of the host's lease, which a handoff
// keeps.
func TestEveryHostSeesForHowLongALockIsHeld(t *testing.T) {
	server := testserver.StartRedis(t)
	h1, h2 := named(t, server, "web-1", nil), named(t, server, "web-2", nil)
	c1, c2 := h1.dial(client.Options{}), h2.dial(client.Options{})
	for _, mode := range []protocol.Mode{protocol.Exclusive, protocol.Shared, protocol.Permit} {
		key, inspected := "k"+strconv.Itoa(int(mode)), mode
		if mode != protocol.Permit {
			inspected = protocol.Exclusive
		}
		begin := time.Now()
		g := acquire(t, c1, client.AcquireArgs{Key: key, Mode: mode,
			Permits: map[bool]uint32{true: 3}[mode == protocol.Permit]})
		granted := time.Now()
		want := func() {
			t.Helper()
			eventually(t, "the time is known", func() bool {
				before := time.Now()
				st := holders(t, c2, key, inspected)
				if len(st.By) != 1 || st.By[0].Kind == protocol.HolderUnregistered || st.By[0].Held <= 0 {
					return false
				}
				held := time.Duration(st.By[0].Held) * time.Millisecond
				if held < before.Sub(granted)-10*time.Millisecond || held > time.Since(begin) {
					t.Fatalf("held for %v, but granted between %v and %v ago", held, before.Sub(granted),
						time.Since(begin))
				}
				return true
			})
		}
		want()
		if mode == protocol.Exclusive {
			next := make(chan error, 1)
			go func() {
				_, err := c1.Acquire(t.Context(), client.AcquireArgs{Key: key, Owner: 2, Wait: -1})
				next <- err
			}()
			eventually(t, "it waits", func() bool { return holders(t, c1, key, inspected).Waiters == 1 })
			if _, err := c1.Release(t.Context(), client.ReleaseArgs{Key: key, Fence: g.Fence}); err != nil {
				t.Fatal(err)
			}
			if err := <-next; err != nil {
				t.Fatal(err)
			}
			want()
		}
	}
}

func pid() string { return strconv.Itoa(os.Getpid()) }

func TestHoldersWithoutAName(t *testing.T) {
	server := testserver.StartRedis(t)
	h1, h2 := named(t, server, "web-1", nil), named(t, server, "web-2", nil)
	c1, c2 := h1.dial(client.Options{}), h2.dial(client.Options{})
	acquire(t, c1, client.AcquireArgs{Key: "k"})
	heldBy(t, c2, "k", protocol.Exclusive, "web-1")

	// An older daemon has no entry, nor has one whose entry has ended.
	name := "locksidecar:{}:daemon:" + strings.Split(server.Admin().Get(t.Context(), "lock:k").Val(),
		".")[0]
	if n := server.Admin().Del(t.Context(), name).Val(); n != 1 {
		t.Fatalf("%d entries deleted, of %q", n, registrations(t, server))
	}
	st := heldBy(t, c2, "k", protocol.Exclusive, "an unregistered daemon")
	if by := st.By[0]; by.Kind != protocol.HolderUnregistered || by.Host != "" || by.Name == "" ||
		st.Held != protocol.HeldThere {
		t.Errorf("%+v", st)
	}
	// Anybody who can write to the store can write there.
	server.Admin().Set(t.Context(), name, `{"host":"\u001b[31mweb\n\u202e","version":"<script>"}`,
		time.Minute)
	heldBy(t, c2, "k", protocol.Exclusive, "\ufffd[31mweb\ufffd\ufffd")
	server.Admin().Set(t.Context(), name, strings.Repeat("x", 1<<20), time.Minute)
	heldBy(t, c2, "k", protocol.Exclusive, "an unregistered daemon")

	server.Admin().Set(t.Context(), "lock:theirs", "token of another program", time.Minute)
	st = heldBy(t, c2, "theirs", protocol.Exclusive, "another program")
	if by := st.By[0]; by.Kind != protocol.HolderForeign ||
		by.Name != "token of another program" || by.Left <= 0 {
		t.Errorf("%+v", st)
	}
}

func TestEntriesEndWithTheirDaemons(t *testing.T) {
	server := testserver.StartRedis(t)
	h := named(t, server, "web-1", nil)
	eventually(t, "it has registered", func() bool { return len(registrations(t, server)) == 1 })
	if ttl := server.Admin().PTTL(t.Context(), registrations(t, server)[0]).Val(); ttl <= 0 ||
		ttl > 90*time.Second {
		t.Errorf("the entry ends in %v", ttl)
	}
	h.stop()
	if err := <-h.done; err != nil {
		t.Error(err)
	}
	h.done <- nil
	if left := registrations(t, server); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
}

func TestHoldersAreForThoseWhoMayUseTheKey(t *testing.T) {
	server := testserver.StartRedis(t)
	nobody := 4_000_000 // no user of this test
	h1 := named(t, server, "web-1", nil)
	h2 := named(t, server, "web-2", func(c *daemon.Config) {
		c.Namespaces = []engine.Namespace{{Store: "store"},
			{Prefix: "secret:", Store: "store", Users: []int{nobody}}}
	})
	c1, c2 := h1.dial(client.Options{}), h2.dial(client.Options{})
	acquire(t, c1, client.AcquireArgs{Key: "secret:k"})
	for _, mode := range []protocol.Mode{protocol.Exclusive, protocol.Permit} {
		if st, err := c2.InspectHolders(t.Context(), "secret:k", mode); !errors.Is(err,
			client.ErrDenied) || len(st.By) != 0 {
			t.Errorf("%+v, %v", st, err)
		}
	}
	for r, err := range c2.AllStored(t.Context(), "") {
		t.Errorf("%+v, %v", r, err)
	}
}

// stubborn is a store whose registrations never end by themselves.
type stubborn struct {
	upstream.Store
	asked chan struct{}
}

func (s stubborn) Capabilities() upstream.Capabilities {
	return upstream.Capabilities{Lister: s, Registrar: s}
}

func (s stubborn) List(context.Context, string, string, int) ([]upstream.Lock, string, error) {
	return nil, "", nil
}

func (s stubborn) Register(ctx context.Context, _ upstream.Registration, _ time.Duration) error {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s stubborn) Unregister(context.Context) error { return errors.New("never") }

func (s stubborn) Registered(context.Context, []string) (map[string]upstream.Registration, error) {
	return nil, errors.New("never")
}

func (s stubborn) Holders(ctx context.Context, _ string, _ cache.Mode,
	_ int) ([]upstream.Lock, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestLocksDoNotDependOnRegistrations(t *testing.T) {
	t.Parallel()
	store := stubborn{embeddedStore(t), make(chan struct{}, 1)}
	h := start(t, store, nil)
	<-store.asked
	c := h.dial(client.Options{})
	slow := make(chan error, 1)
	go func() {
		_, err := c.InspectHolders(context.Background(), "free", protocol.Exclusive)
		slow <- err
	}()
	for range 3 {
		g := acquire(t, c, client.AcquireArgs{Key: "k"})
		// this host knows
		if st := holders(t, c, "k", protocol.Exclusive); len(st.By) != 1 ||
			st.By[0].Kind != protocol.HolderHere {
			t.Errorf("%+v", st)
		}
		if _, err := c.Release(t.Context(), client.ReleaseArgs{Key: "k", Fence: g.Fence}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-slow; !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("a store that does not tell: %v", err)
	}
}

// holdSilently has n other hosts, which answer no questions, hold the keys k0 to kn-1.
func holdSilently(t testing.TB, server *testserver.Redis, n int) {
	t.Helper()
	cfg, err := redis.Parse(server.URL() + "?timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		s, err := redis.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		ops, res := []upstream.Op{{Kind: cache.OpTry, Key: fmt.Sprint("k", i), Token: 1,
			TTL: 10 * time.Minute}}, make([]upstream.Result, 1)
		if err := s.Apply(t.Context(), ops, res); err != nil || res[0].Status != cache.Granted {
			t.Fatal(res, err)
		}
		t.Cleanup(func() {
			ops[0].Kind = cache.OpRelease
			_ = s.Apply(context.Background(), ops, res)
		})
	}
}

// A view names the holders of all keys that clients wait for, although none of the holders' hosts
// answers questions.
func TestAViewWaitsForAllSilentHostsAtOnce(t *testing.T) {
	t.Parallel()
	const keys = 30
	server := testserver.StartRedis(t)
	h := named(t, server, "web-1", nil)
	holdSilently(t, server, keys)
	c := h.dial(client.Options{})
	for i := range keys {
		h.queue(c, fmt.Sprint("k", i), uint64(i), time.Minute)
	}
	eventually(t, "all holders are named", func() bool {
		n := 0
		for _, w := range h.view(engine.ViewQuery{}).Waiters {
			if w.Holder != nil {
				n++
			}
		}
		return n == keys
	})
}
