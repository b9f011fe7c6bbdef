package daemon_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// A configuration's Commit is called when nothing else can fail. If it fails, nothing has changed.
func TestCommitComesLast(t *testing.T) {
	refused := errors.New("refused")
	socket := filepath.Join(t.TempDir(), "s.sock")
	unused, another := inMemory(t), inMemory(t)
	t.Cleanup(func() { // behind the daemon's own
		_ = unused.Close()
		_ = another.Close()
	})
	first := serving(unused)
	first.Commit = func() error { return refused }
	if _, err := daemon.Listen(daemon.Config{Socket: socket, Serving: first}); !errors.Is(err,
		refused) {
		t.Errorf("Listen: %v", err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is there: %v", err)
	}

	calls := 0
	h := start(t, inMemory(t), func(c *daemon.Config) {
		c.Commit = func() error { calls++; return nil }
	})
	if calls != 1 {
		t.Errorf("Listen: %d calls", calls)
	}
	c := h.dial(client.Options{})
	acquire(t, c, client.AcquireArgs{Key: "a"})
	next := daemon.Serving{Stores: []daemon.StoreConfig{{Name: "another", Store: another}}}
	for _, r := range []struct {
		name       string
		namespaces []engine.Namespace
		commit     error
		calls      int
	}{
		{"a fault in a namespace", []engine.Namespace{{Store: "none"}}, nil, 0},
		{"a fault in Commit", nil, refused, 1},
		{"no fault", nil, nil, 1},
	} {
		calls = 0
		next.Namespaces, next.Commit = r.namespaces, func() error { calls++; return r.commit }
		err := h.d.Reload(next)
		if calls != r.calls || (err != nil) != (r.name != "no fault") {
			t.Errorf("%s: %d calls, %v", r.name, calls, err)
		}
		if left := len(h.d.Moved()); (left == 1) != (err == nil) {
			t.Errorf("%s: %d locks have moved", r.name, left)
		}
	}
	if _, err := c.Inspect(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}
