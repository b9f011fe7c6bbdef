package daemon_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is how long a test waits for what has to happen; generous, so that a
// busy machine does not fail it.
const bound = 30 * time.Second

// host is a daemon under test.
type host struct {
	t      testing.TB
	d      *daemon.Daemon
	socket string
	store  upstream.Store
	stop   context.CancelFunc
	done   chan error
}

// serving is one store for all keys.
func serving(s upstream.Store) daemon.Serving {
	return daemon.Serving{Stores: []daemon.StoreConfig{{Name: "store", Store: s}}}
}

func embeddedStore(t testing.TB) upstream.Store {
	t.Helper()
	s, err := embedded.Open(embedded.Options{Clock: renewer.Boottime})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// start runs a daemon on a store, the embedded one when it is nil.
func start(t testing.TB, store upstream.Store, change func(*daemon.Config)) *host {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s.sock")
	if store == nil {
		store = embeddedStore(t)
	}
	cfg := daemon.Config{Socket: socket, Serving: serving(store), Log: zaptest.NewLogger(t),
		Version: "test"}
	if change != nil {
		change(&cfg)
	}
	d, err := daemon.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h := &host{t: t, d: d, socket: cfg.Socket, store: store, stop: cancel, done: make(chan error, 1)}
	go func() { h.done <- d.Serve(ctx) }()
	t.Cleanup(func() { // after the clients' own: they have gone
		if ctx.Err() == nil && !t.Failed() {
			eventually(t, "nothing is left", func() bool { return d.Engine().Residue().None() })
		}
		cancel()
		d.Stop()
		if err := <-h.done; err != nil {
			t.Error(err)
		}
		h.done <- nil
		if h.store == nil { // the test has closed it
			return
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *host) dial(opts client.Options) *client.Client {
	h.t.Helper()
	c, err := client.Dial(h.t.Context(), h.socket, opts)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// eventually polls until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(bound)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("did not come about: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
