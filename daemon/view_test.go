package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// view asks for one as programs do.
func (h *host) view(q engine.ViewQuery) engine.View {
	h.t.Helper()
	r, b := h.get("/view.json?"+q.Values().Encode(), "")
	if r.StatusCode != http.StatusOK {
		h.t.Fatalf("%s: %s", r.Status, b)
	}
	var v engine.View
	if err := json.Unmarshal(b, &v); err != nil {
		h.t.Fatalf("%v: %s", err, b)
	}
	return v
}

func take(t *testing.T, c *client.Client, q client.AcquireArgs) protocol.Grant {
	t.Helper()
	g, err := c.Acquire(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// queue has somebody wait for a key until the test ends.
func (h *host) queue(c *client.Client, key string, owner uint64, wait time.Duration) {
	h.t.Helper()
	waiting := func() int64 { v, _ := h.d.View(engine.ViewQuery{}); return v.Totals.Waiting }
	before := waiting()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Acquire(h.t.Context(), client.AcquireArgs{Key: key, Owner: owner, Wait: wait})
	}()
	h.t.Cleanup(func() { _ = c.Close(); <-done })
	eventually(h.t, "it waits", func() bool { return waiting() > before })
}

func TestViewShowsWhatThereIs(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) {
		c.Classes = []engine.Class{{Name: "orders", Prefix: "order:"}}
		c.Namespaces = []engine.Namespace{{Store: "store"},
			{Prefix: "short", Store: "store", MaxHold: 100 * time.Millisecond}}
	})
	a, b := h.dial(client.Options{Name: "holder"}), h.dial(client.Options{Name: "waiter", Label: "x"})
	g := take(t, a, client.AcquireArgs{Key: "order:1", Owner: 7, TTL: 20 * time.Second})
	take(t, a, client.AcquireArgs{Key: "other", Owner: 8, Mode: protocol.Shared})
	h.queue(b, "other", 1<<62+1, time.Hour)
	short := take(t, a, client.AcquireArgs{Key: "short", Owner: 9})
	eventually(t, "it is lost", func() bool { return len(h.view(engine.ViewQuery{}).Lost) == 1 })

	v := h.view(engine.ViewQuery{})
	if v.Version != "test" || v.PID != os.Getpid() || v.Up < 100 || v.NotReady != "" {
		t.Errorf("%+v", v)
	}
	if tt := v.Totals; tt.Held != 2 || tt.Waiting != 1 || tt.Sessions != 2 || tt.Granted != 3 ||
		tt.Lost != 1 || tt.Oldest < 100 {
		t.Errorf("%+v", tt)
	}
	if s := v.Stores; len(s) != 1 || s[0].Name != "store" || s[0].Kind != "embedded" || !s[0].Up ||
		s[0].Leases != 2 {
		t.Errorf("%+v", s)
	}
	if len(v.Holds) != 2 || len(v.Waiters) != 1 || len(v.Sessions) != 2 ||
		v.More != (engine.ViewMore{}) {
		t.Fatalf("%+v", v)
	}
	o := v.Holds[0]
	if o.Key != "order:1" || o.Mode != "exclusive" || o.Owner != 7 || o.Fence != g.Fence ||
		o.Class != "orders" || o.Session != a.Welcome().Session ||
		o.PID != os.Getpid() || o.UID != os.Getuid() || o.Client != "holder" || o.Left <= 0 ||
		o.Left > 20_000 || o.TTL != 10_000 || o.Held < 100 {
		t.Errorf("%+v", o)
	}
	if o = v.Holds[1]; o.Key != "other" || o.Mode != "shared" || o.Waiters != 1 {
		t.Errorf("%+v", o)
	}
	w := v.Waiters[0]
	if w.Key != "other" || w.Owner != 1<<62+1 || w.Client != "waiter/x" || w.Place != 1 ||
		w.Left < 3_000_000 || w.Behind == nil || w.Behind.Client != "holder" {
		t.Errorf("%+v", w)
	}
	if s := v.Sessions[0]; s.Client != "holder" || s.Holds != 2 || s.Since < 100 ||
		s.Heard < 0 || !s.Watched {
		t.Errorf("%+v", s)
	}
	if l := v.Lost[0]; l.Key != "short" || l.Fence != short.Fence || l.Reason != "too_long" ||
		l.Client != "holder" || l.Held < 90 {
		t.Errorf("%+v", l)
	}
}

func TestViewIsOrderedAndCut(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	for i, key := range []string{"c", "a", "b", "x:1", "x:2"} { // the later, the less is left
		take(t, c, client.AcquireArgs{Key: key, Owner: 1, Fixed: true,
			TTL: 6*time.Second - time.Duration(i)*100*time.Millisecond})
	}
	h.queue(h.dial(client.Options{}), "b", 1, time.Hour)
	for _, tc := range []struct {
		query, want string
		more        bool
	}{
		{"", "c a b x:1 x:2", false},
		{"desc=true", "x:2 x:1 b a c", false},
		{"sort=key", "a b c x:1 x:2", false},
		{"sort=key&desc=true&limit=2", "x:2 x:1", true},
		{"sort=left", "x:2 x:1 b a c", false},
		{"sort=left&limit=4", "x:2 x:1 b a", true},
		{"sort=waiters&limit=1", "b", true},
		{"limit=3", "c a b", true},
		{"limit=5", "c a b x:1 x:2", false},
		{"prefix=x:", "x:1 x:2", false},
		{"prefix=x:&limit=1&desc=1", "x:2", true},
		{"prefix=" + url.QueryEscape("ü%&"), "", false},
	} {
		_, b := h.get("/view.json?"+tc.query, "")
		var v engine.View
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatalf("%s: %v: %s", tc.query, err, b)
		}
		var keys []string
		for _, o := range v.Holds {
			keys = append(keys, o.Key)
		}
		if got := strings.Join(keys, " "); got != tc.want || v.More.Holds != tc.more {
			t.Errorf("%s: %s (more: %v), want %s", tc.query, got, v.More.Holds, tc.want)
		}
	}
	for _, bad := range []string{"limit=0x", "limit=-1", "limit=1001", "sort=hostile",
		"desc=perhaps"} {
		if r, b := h.get("/view.json?"+bad, ""); r.StatusCode != http.StatusBadRequest ||
			!strings.HasPrefix(string(b), "bad query: ") {
			t.Errorf("%s: %s %s", bad, r.Status, b)
		}
	}
	if _, err := h.d.View(engine.ViewQuery{Sort: "no"}); err == nil {
		t.Error("there is no such order")
	}
}

func TestAViewOfNothingHasEmptyLists(t *testing.T) {
	h := start(t, nil, nil)
	_, b := h.get("/view.json", "")
	for _, list := range []string{"stores", "holds", "waiters", "sessions", "lost", "history"} {
		if strings.Contains(string(b), fmt.Sprintf("%q:null", list)) {
			t.Errorf("%s is null", list)
		}
	}
	h.d.Engine().StoreDown(h.d.Engine().Stores()[0], errors.New("gone fishing"))
	if v := h.view(engine.ViewQuery{}); v.NotReady == "" || v.Stores[0].Up ||
		v.Stores[0].Error != "gone fishing" {
		t.Errorf("%+v", v)
	}
	h.d.Engine().StoreUp(h.d.Engine().Stores()[0])
}
