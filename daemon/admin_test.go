package daemon_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// get asks the admin socket.
func (h *host) get(path, accept string) (*http.Response, []byte) {
	h.t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", admin.Socket(h.socket))
	}}
	defer tr.CloseIdleConnections()
	q, err := http.NewRequest("GET", "http://daemon"+path, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	q.Header.Set("Accept", accept)
	r, err := tr.RoundTrip(q)
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return r, b
}

// metrics scrapes as Prometheus does, with native histograms.
func (h *host) metrics() map[string]*dto.MetricFamily {
	h.t.Helper()
	format := expfmt.NewFormat(expfmt.TypeProtoDelim)
	r, b := h.get("/metrics", string(format))
	if r.StatusCode != http.StatusOK {
		h.t.Fatalf("%s: %s", r.Status, b)
	}
	dec := expfmt.NewDecoder(strings.NewReader(string(b)), expfmt.ResponseFormat(r.Header))
	all := make(map[string]*dto.MetricFamily)
	for {
		f := new(dto.MetricFamily)
		if err := dec.Decode(f); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			h.t.Fatal(err)
		}
		all[f.GetName()] = f
	}
}

// series is the one whose labels have these values, whatever their order.
func series(t *testing.T, all map[string]*dto.MetricFamily, name string,
	values ...string) *dto.Metric {
	t.Helper()
	for _, m := range all["locksidecar_"+name].GetMetric() {
		found := 0
		for _, l := range m.GetLabel() {
			for _, v := range values {
				if l.GetValue() == v {
					found++
				}
			}
		}
		if found == len(values) {
			return m
		}
	}
	t.Fatalf("there is no %s of %v", name, values)
	return nil
}

func TestMetricsSayWhatHappened(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) {
		c.Namespaces = []engine.Namespace{{Store: "store"},
			{Prefix: "own:", Store: "store", Users: []int{1 << 30}}}
		c.Classes = []engine.Class{{Name: "orders", Prefix: "order:"}}
	})
	c := h.dial(client.Options{})
	ctx := t.Context()
	g, err := c.Acquire(ctx, client.AcquireArgs{Key: "order:1", Owner: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Acquire(ctx, client.AcquireArgs{Key: "order:1", Owner: 2}); !errors.Is(err,
		client.ErrBusy) {
		t.Fatal(err)
	}
	if _, err := c.Acquire(ctx, client.AcquireArgs{Key: "own:1", Owner: 2}); !errors.Is(err,
		client.ErrDenied) {
		t.Fatal(err)
	}
	all := h.metrics()
	for _, tc := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"acquires_total", []string{"default", "orders", "granted"}, 1},
		{"acquires_total", []string{"default", "orders", "busy"}, 1},
		{"acquires_total", []string{"default", "", "granted"}, 0}, // there from the start
		{"acquires_total", []string{"own:", "", "denied"}, 1},
		{"lost_total", []string{"default", "orders", "expired"}, 0},
		{"releases_total", []string{"default", "orders", "session"}, 0},
		{"held_locks", []string{"default", "orders"}, 1},
		{"waiters", []string{"default", "orders"}, 0},
		{"sessions", nil, 1},
		{"store_up", []string{"store"}, 1},
		{"renewals_total", []string{"store", "renewed"}, 0},
		{"shortest_ttl_seconds", []string{"store"}, 10}, // of own:
		{"protocol_errors_total", []string{"bad_frame"}, 0},
		{"build_info", []string{"test"}, 1},
	} {
		m := series(t, all, tc.name, tc.labels...)
		if got := m.GetCounter().GetValue() + m.GetGauge().GetValue(); got != tc.want {
			t.Errorf("%s of %v is %v, want %v", tc.name, tc.labels, got, tc.want)
		}
	}
	if m := series(t, all, "oldest_hold_seconds"); m.GetGauge().GetValue() <= 0 {
		t.Error("the oldest hold has no age")
	}
	w := series(t, all, "wait_seconds", "default", "orders").GetHistogram()
	if w.GetSampleCount() != 1 || w.GetSchema() != 2 || len(w.GetBucket()) < 10 ||
		len(w.GetPositiveSpan()) == 0 && w.GetZeroCount() == 0 {
		t.Errorf("waits: %v", w)
	}
	if _, err := c.Release(ctx, client.ReleaseArgs{Key: "order:1", Owner: 1,
		Fence: g.Fence}); err != nil {
		t.Fatal(err)
	}
	all = h.metrics()
	if n := series(t, all, "releases_total", "orders", "release").GetCounter().GetValue(); n != 1 {
		t.Errorf("%v releases", n)
	}
	if n := series(t, all, "hold_seconds", "default",
		"orders").GetHistogram().GetSampleCount(); n != 1 {
		t.Errorf("%v holds have ended", n)
	}
}

func TestNoKeyIsEverALabel(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{Name: "a program", Label: "a label"})
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "a secret key",
		Owner: 1}); err != nil {
		t.Fatal(err)
	}
	_, b := h.get("/metrics", "")
	for _, word := range []string{"secret", "a program", "a label"} {
		if strings.Contains(string(b), word) {
			t.Errorf("metrics have %q", word)
		}
	}
	if !strings.Contains(string(b), `locksidecar_acquires_total{class="",namespace="default",result="granted"} 1`) {
		t.Errorf("%s", b)
	}
}

func TestHealthFollowsTheStore(t *testing.T) {
	h := start(t, nil, nil)
	for _, path := range []string{"/livez", "/readyz"} {
		if r, b := h.get(path, ""); r.StatusCode != http.StatusOK || string(b) != "ok\n" {
			t.Errorf("%s: %s %s", path, r.Status, b)
		}
	}
	sl := h.d.Engine().Stores()[0]
	h.d.Engine().StoreDown(sl, errors.New("gone fishing"))
	if r, b := h.get("/readyz", ""); r.StatusCode != http.StatusServiceUnavailable ||
		!strings.Contains(string(b), "gone fishing") {
		t.Errorf("readyz: %s %s", r.Status, b)
	}
	if r, _ := h.get("/livez", ""); r.StatusCode != http.StatusOK {
		t.Errorf("livez: %s: a restart would not help", r.Status)
	}
	if n := series(t, h.metrics(), "store_up", "store").GetGauge().GetValue(); n != 0 {
		t.Error("the store is up")
	}
	h.d.Engine().StoreUp(sl)
}

func TestWhatIsLostIsLoggedAndCounted(t *testing.T) {
	core, seen := observer.New(zap.InfoLevel)
	h := start(t, nil, func(c *daemon.Config) {
		c.Log = zap.New(core)
		c.Namespaces = []engine.Namespace{{Store: "store", MaxHold: 200 * time.Millisecond}}
	})
	c := h.dial(client.Options{Name: "prog"})
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "fixed", Owner: 7,
		TTL: 100 * time.Millisecond, Fixed: true}); err != nil {
		t.Fatal(err)
	}
	g, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "k", Owner: 7})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is logged", func() bool { return seen.FilterField(zap.String("event", "lost")).Len() > 0 })
	got := seen.FilterField(zap.String("event", "lost")).All()[0]
	want := map[string]any{"event": "lost", "key": "k", "mode": "exclusive", "owner": uint64(7),
		"fence": g.Fence, "reason": "too_long", "client": "prog"}
	for k, v := range want {
		if got.ContextMap()[k] != v {
			t.Errorf("%s is %v, want %v", k, got.ContextMap()[k], v)
		}
	}
	if got.Level != zap.WarnLevel || seen.FilterField(zap.String("event", "acquired")).Len() != 0 {
		t.Errorf("%+v", seen.All())
	}
	if n := series(t, h.metrics(), "lost_total", "default",
		"too_long").GetCounter().GetValue(); n != 1 {
		t.Errorf("%v are counted as lost", n)
	}
	// A fixed hold that comes to its own end is not lost.
	eventually(t, "the end of the fixed hold is counted", func() bool {
		return series(t, h.metrics(), "releases_total", "default",
			"fixed_end").GetCounter().GetValue() == 1
	})
	if n := seen.FilterField(zap.String("event", "lost")).Len(); n != 1 {
		t.Errorf("%d losses are logged, want that of k alone", n)
	}
}

// The protocol for locks on the admin socket is answered at once, not at a timeout.
func TestAdminSocketAnswersAClientForLocks(t *testing.T) {
	h := start(t, nil, nil)
	c, err := net.Dial("unix", admin.Socket(h.socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hello := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpHello, ID: 1})
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(said), "HTTP/1.1 400 ") ||
		!strings.Contains(string(said), "this is the admin socket") {
		t.Errorf("it said %q", said)
	}
}
