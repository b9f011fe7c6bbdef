package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// post sends a form to the admin socket, or by TCP to addr if there is one.
func (h *host) post(path, addr string, form url.Values, change func(*http.Request)) (int, []byte) {
	h.t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		if addr != "" {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
		return new(net.Dialer).DialContext(ctx, "unix", admin.Socket(h.socket))
	}}
	defer tr.CloseIdleConnections()
	q, err := http.NewRequest("POST", "http://localhost"+path, strings.NewReader(form.Encode()))
	if err != nil {
		h.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if change != nil {
		change(q)
	}
	r, err := tr.RoundTrip(q)
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.StatusCode, b
}

func (h *host) unlock(form url.Values) admin.Unlocked {
	h.t.Helper()
	code, b := h.post("/unlock", "", form, nil)
	var u admin.Unlocked
	if err := json.Unmarshal(b, &u); code != http.StatusOK || err != nil {
		h.t.Fatalf("%d %s", code, b)
	}
	return u
}

func TestUnlockTellsTheHolderAndThenLetsOthersIn(t *testing.T) {
	core, seen := observer.New(zap.InfoLevel)
	h := start(t, nil, func(c *daemon.Config) { c.Log = zap.New(core) })
	losses := make(chan client.Lost, 1)
	a := h.dial(client.Options{Name: "holder", OnLost: func(l client.Lost) { losses <- l }})
	b := h.dial(client.Options{Name: "next"})
	g := take(t, a, client.AcquireArgs{Key: "k", Owner: 3})
	granted := make(chan error, 1)
	go func() {
		_, err := b.Acquire(t.Context(), client.AcquireArgs{Key: "k", Owner: 4, Wait: -1})
		granted <- err
	}()
	eventually(t, "it waits", func() bool { return h.view(engine.ViewQuery{}).Totals.Waiting == 1 })

	u := h.unlock(url.Values{"key": {"k"}, "fence": {strconv.FormatUint(g.Fence, 10)}})
	if u.Released != 1 || u.FreeIn < 1000 || u.FreeIn > 10_000 || len(u.Holds) != 1 ||
		u.Holds[0].Client != "holder" || !u.Holds[0].Forced {
		t.Fatalf("%+v", u)
	}
	if l := <-losses; l.Key != "k" || l.Reason != protocol.LostForced || l.Fence != g.Fence {
		t.Errorf("%+v", l)
	}
	if again := h.unlock(url.Values{"key": {"k"}, "mode": {"lock"}}); again.Released != 0 ||
		again.FreeIn < 1 || len(again.Holds) != 0 {
		t.Errorf("%+v", again)
	}
	v := h.view(engine.ViewQuery{})
	if len(v.Holds) != 1 || !v.Holds[0].Forced || v.Totals.Held != 0 || len(v.Lost) != 1 ||
		v.Lost[0].Reason != "forced" {
		t.Errorf("%+v", v)
	}
	select {
	case err := <-granted:
		t.Fatalf("granted (%v) while the holder may not know", err)
	default:
	}
	if _, err := a.Release(t.Context(), client.ReleaseArgs{Key: "k", Owner: 3,
		Fence: g.Fence}); !errors.Is(err, client.ErrNotHeld) {
		t.Errorf("the holder's own release: %v", err)
	}
	if err := <-granted; err != nil { // at once, and not when the validity is over
		t.Fatal(err)
	}
	lines := seen.FilterField(zap.String("event", "unlocked")).All()
	if len(lines) != 1 {
		t.Fatalf("%d lines", len(lines))
	}
	for k, want := range map[string]any{"key": "k", "fence": g.Fence, "client": "holder",
		"by_uid": int64(os.Getuid()), "by_pid": int64(os.Getpid())} {
		if got := lines[0].ContextMap()[k]; got != want {
			t.Errorf("%s is %v, want %v", k, got, want)
		}
	}
}

func TestAClientUnlocksByForce(t *testing.T) {
	core, seen := observer.New(zap.InfoLevel)
	h := start(t, nil, func(c *daemon.Config) { c.Log = zap.New(core) })
	losses := make(chan client.Lost, 3)
	a := h.dial(client.Options{Name: "holder", OnLost: func(l client.Lost) { losses <- l }})
	b := h.dial(client.Options{Name: "operator"})
	unlock := func(mode protocol.Mode, fence, want uint64) {
		t.Helper()
		if n, err := b.ForceUnlock(t.Context(), "k", mode, fence); n != want || err != nil {
			t.Errorf("%d, %v; want %d", n, err, want)
		}
	}
	g := take(t, a, client.AcquireArgs{Key: "k", Owner: 3})
	unlock(protocol.Exclusive, g.Fence+1, 0)
	unlock(protocol.Permit, 0, 0)
	unlock(protocol.Exclusive, g.Fence, 1)
	unlock(protocol.Exclusive, 0, 0)
	if l := <-losses; l.Key != "k" || l.Reason != protocol.LostForced || l.Fence != g.Fence {
		t.Errorf("%+v", l)
	}
	take(t, a, client.AcquireArgs{Key: "k", Owner: 3, Permits: 2})
	take(t, a, client.AcquireArgs{Key: "k", Owner: 4, Permits: 2})
	unlock(protocol.Permit, 0, 2)
	if n := seen.FilterField(zap.String("event", "unlocked")).Len(); n != 3 {
		t.Errorf("%d lines", n)
	}
}

func TestUnlockOfAPermit(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	g := take(t, c, client.AcquireArgs{Key: "s", Owner: 1, Permits: 2})
	take(t, c, client.AcquireArgs{Key: "s", Owner: 1, Permits: 2})
	if code, _ := h.post("/unlock", "", url.Values{"key": {"s"}}, nil); code != http.StatusNotFound {
		t.Errorf("%d: there is no lock of that name", code)
	}
	if u := h.unlock(url.Values{"key": {"s"}, "mode": {"semaphore"},
		"fence": {strconv.FormatUint(g.Fence, 10)}}); u.Released != 1 {
		t.Errorf("%+v", u)
	}
	if u := h.unlock(url.Values{"key": {"s"}, "mode": {"semaphore"}}); u.Released != 1 {
		t.Errorf("%+v", u)
	}
}

func TestUnlockIsRefused(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) { c.AdminListen = "127.0.0.1:0" })
	take(t, h.dial(client.Options{}), client.AcquireArgs{Key: "k", Owner: 1, TTL: time.Minute})
	for name, tc := range map[string]struct {
		addr string
		form url.Values
		head [2]string
		code int
	}{
		"no key":      {"", url.Values{}, [2]string{}, http.StatusBadRequest},
		"no such key": {"", url.Values{"key": {"other"}}, [2]string{}, http.StatusNotFound},
		"bad key":     {"", url.Values{"key": {"a\nb"}}, [2]string{}, http.StatusBadRequest},
		"bad mode": {"", url.Values{"key": {"k"}, "mode": {"all"}}, [2]string{},
			http.StatusBadRequest},
		"bad fence": {"", url.Values{"key": {"k"}, "fence": {"-1"}}, [2]string{},
			http.StatusBadRequest},
		"another fence": {"", url.Values{"key": {"k"}, "fence": {"1"}}, [2]string{}, http.StatusNotFound},
		"too much": {"", url.Values{"key": {strings.Repeat("k", 5000)}}, [2]string{},
			http.StatusBadRequest},
		"another site": {"", url.Values{"key": {"k"}}, [2]string{"Sec-Fetch-Site", "cross-site"},
			http.StatusForbidden},
		"by TCP": {h.d.AdminAddr().String(), url.Values{"key": {"k"}}, [2]string{}, http.StatusNotFound},
	} {
		code, b := h.post("/unlock", tc.addr, tc.form, func(r *http.Request) {
			if tc.head[0] != "" {
				r.Header.Set(tc.head[0], tc.head[1])
			}
		})
		if code != tc.code {
			t.Errorf("%s: %d %s, want %d", name, code, b, tc.code)
		}
	}
	if r, _ := h.get("/unlock?key=k", ""); r.StatusCode == http.StatusOK {
		t.Error("a GET changes something")
	}
	if v := h.view(engine.ViewQuery{}); v.Totals.Held != 1 || v.Totals.Lost != 0 {
		t.Errorf("%+v", v.Totals)
	}
}

// TestViewsAndUnlockingGoAlongWithWork is for the race detector, and for the account at its end.
func TestViewsAndUnlockingGoAlongWithWork(t *testing.T) {
	h := start(t, nil, nil)
	key := func(i int) string { return strconv.Itoa(i % 7) }
	var work, eyes sync.WaitGroup
	done := make(chan struct{})
	for n := range 4 {
		c := h.dial(client.Options{Name: "worker"})
		work.Go(func() {
			for i := range 300 {
				q := client.AcquireArgs{Key: key(i * (n + 1)), Owner: uint64(i), Wait: 10 * time.Millisecond}
				if i%3 == 0 {
					q.Permits = 2
				}
				g, err := c.Acquire(t.Context(), q)
				if err == nil {
					_, err = c.Release(t.Context(), client.ReleaseArgs{Key: q.Key, Owner: q.Owner, Fence: g.Fence})
				}
				if err != nil && !errors.Is(err, client.ErrNotHeld) && !errors.Is(err, client.ErrTimeout) &&
					!errors.Is(err, client.ErrBusy) {
					t.Error(err)
					return
				}
			}
		})
	}
	for _, sort := range engine.ViewSorts {
		eyes.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				if _, err := h.d.View(engine.ViewQuery{Sort: sort, Desc: i%2 == 0, Limit: 3}); err != nil {
					t.Error(err)
				}
				h.d.Unlock(key(i), i%2 == 0, 0, engine.Peer{})
			}
		})
	}
	work.Wait()
	close(done)
	eyes.Wait()
}
