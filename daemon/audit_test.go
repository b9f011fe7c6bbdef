package daemon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// auditLog has the lines of an audit.
type auditLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *auditLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *auditLog) all(t *testing.T) (ms []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := json.NewDecoder(bytes.NewReader(l.b.Bytes())); ; {
		var m map[string]any
		if err := d.Decode(&m); err == io.EOF {
			return ms
		} else if err != nil {
			t.Fatalf("%v: %s", err, l.b.Bytes())
		}
		ms = append(ms, m)
	}
}

// audited starts a daemon and returns what its audit says of a client: event, key, and why.
func audited(t *testing.T) (h *host, of func(name string) []string) {
	seen := new(auditLog)
	h = start(t, nil, func(c *daemon.Config) {
		c.Audit, c.Logging.Audit = seen, true
		c.Namespaces = []engine.Namespace{{Store: "store"},
			{Prefix: "own:", Store: "store", Users: []int{1 << 30}}}
	})
	return h, func(name string) (lines []string) {
		for _, m := range seen.all(t) {
			if m["client"] != name {
				continue
			}
			line := fmt.Sprint(m["event"], " ", m["key"])
			for _, why := range []string{"code", "cause"} {
				if m[why] != nil {
					line += fmt.Sprint(" ", m[why])
				}
			}
			if m["key"] != nil {
				lines = append(lines, line)
			}
		}
		return lines
	}
}

// says waits until the audit has exactly these lines of a client; what comes before they are
// all there has come in order.
func says(t *testing.T, of func(string) []string, name string, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprint("the audit says of ", name, ": ", want), func() bool {
		return len(of(name)) >= len(want)
	})
	if got := of(name); !slices.Equal(got, want) {
		t.Errorf("the audit says of %s: %q, want %q", name, got, want)
	}
}

// A process ends while its hello is handled.
func TestASessionEndsInTheAuditAfterItsBeginning(t *testing.T) {
	seen := new(auditLog)
	h := start(t, nil, func(c *daemon.Config) { c.Audit, c.Logging.Audit = seen, true })
	c, err := net.Dial("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "there is a session", func() bool { return len(h.d.Engine().Sessions()) == 1 })
	s := h.d.Engine().Sessions()[0]
	end, handle := h.d.HoldRequests()
	hello := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpHello, ID: 1,
		MinVersion: protocol.Version, MaxVersion: protocol.Version, Name: []byte("brief")})
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hello is read", func() bool { return h.d.BytesRead() == uint64(len(hello)) })
	end()
	eventually(t, "the session has ended", s.Ended)
	handle()
	eventually(t, "the audit has the end of the session", func() bool {
		var events []string
		for _, m := range seen.all(t) {
			if m["client"] == "brief" {
				events = append(events, fmt.Sprint(m["event"]))
			}
		}
		return slices.Equal(events, []string{"session_begin", "session_end"})
	})
}

// The audit log has every refusal, whatever its reason.
func TestEveryRefusalIsAudited(t *testing.T) {
	h, of := audited(t)
	c, ctx := h.dial(client.Options{Name: "one"}), t.Context()
	g, err := c.Acquire(ctx, client.AcquireArgs{Key: "k", Owner: 1, Mode: protocol.Shared})
	if err != nil {
		t.Fatal(err)
	}
	for _, no := range []struct {
		args client.AcquireArgs
		want error
	}{
		{client.AcquireArgs{Key: "k", Owner: 1}, client.ErrUpgrade},
		{client.AcquireArgs{Key: "k", Owner: 2}, client.ErrBusy},
		{client.AcquireArgs{Key: "own:k", Owner: 1}, client.ErrDenied},
	} {
		if _, err := c.Acquire(ctx, no.args); !errors.Is(err, no.want) {
			t.Fatalf("%v, want %v", err, no.want)
		}
	}
	if _, err := c.AcquireMany(ctx, []string{"a", "own:b"}, client.AcquireArgs{}); !errors.Is(err,
		client.ErrDenied) {
		t.Fatal(err)
	}
	if _, err := c.Release(ctx, client.ReleaseArgs{Key: "k", Owner: 1, Fence: g.Fence}); err != nil {
		t.Fatal(err)
	}
	says(t, of, "one", "acquired k", "refused k upgrade", "refused k busy", "refused own:k denied",
		"refused own:b denied", "released k release")
	if n := series(t, h.metrics(), "acquires_total", "own:",
		"denied").GetCounter().GetValue(); n != 2 {
		t.Errorf("%v are counted as denied", n)
	}
}

// Of an acquire of many keys the audit has what was held for a moment, and what the client was
// told; not what was tried on the way.
func TestTheAuditOfManyKeysIsWhatTheClientWasTold(t *testing.T) {
	h, of := audited(t)
	one, two, ctx := h.dial(client.Options{Name: "one"}),
		h.dial(client.Options{Name: "two"}), t.Context()
	g, err := one.Acquire(ctx, client.AcquireArgs{Key: "b", Owner: 1})
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{"c", "b", "a"}
	if _, err := two.AcquireMany(ctx, keys, client.AcquireArgs{Owner: 1}); !errors.Is(err,
		client.ErrBusy) {
		t.Fatal(err)
	}
	says(t, of, "two", "acquired a", "acquired c", "released c given_back", "released a given_back",
		"refused b busy")
	got := make(chan error, 1)
	go func() {
		_, err := two.AcquireMany(ctx, keys, client.AcquireArgs{Owner: 1, Wait: client.Forever})
		got <- err
	}()
	eventually(t, "it waits", func() bool {
		s, err := one.Inspect(ctx, "b")
		return err == nil && s.Waiters == 1
	})
	if _, err := one.Release(ctx, client.ReleaseArgs{Key: "b", Owner: 1, Fence: g.Fence}); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	says(t, of, "two", "acquired a", "acquired c", "released c given_back", "released a given_back",
		"refused b busy",
		"acquired a", "acquired c", "released c given_back", "acquired b", "acquired c")
	all := h.metrics()
	if n := series(t, all, "releases_total", "default", "given_back").GetCounter().GetValue(); n != 3 {
		t.Errorf("%v are counted as given back", n)
	}
}
