package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestEveryRequestAndItsReply(t *testing.T) {
	c, p := connect(t, Options{Name: "prog", Label: "unit"}, 0)
	ctx := t.Context()
	g := protocol.Grant{Fence: 1 << 40, Left: 29000, Deadline: 123456, Count: 2, End: 9,
		Flags: protocol.GrantDegraded}
	st := protocol.State{Held: protocol.HeldThere, Mode: protocol.Shared, Holders: 1,
		Waiters: 2, Left: -1}
	rows := []protocol.Row{{Key: "a", Holders: 1, Fence: 3, Left: 5, Session: 7, PID: 8, Client: "x"}}
	b := func(s string) []byte { return []byte(s) }
	for _, tc := range []struct {
		name  string
		do    func() (any, error)
		want  protocol.Request
		reply func(id uint64) []byte
		out   any
	}{
		{"acquire", func() (any, error) {
			return c.Acquire(ctx, AcquireArgs{Key: "k", Owner: 3, Mode: protocol.Shared,
				Wait: 1500 * time.Microsecond, TTL: 10 * time.Second, Fixed: true})
		}, protocol.Request{Op: protocol.OpAcquire, Key: b("k"), Owner: 3, Mode: protocol.Shared, Wait: 2,
			TTL: 10000, Flags: protocol.FlagFixed},
			func(id uint64) []byte { return protocol.AppendGrant(nil, id, &g) }, g},
		{"acquire for ever", func() (any, error) { return c.Acquire(ctx, AcquireArgs{Key: "k", Wait: Forever}) },
			protocol.Request{Op: protocol.OpAcquire, Key: b("k"), Wait: -1},
			func(id uint64) []byte { return protocol.AppendGrant(nil, id, &g) }, g},
		{"release", func() (any, error) {
			return c.Release(ctx, ReleaseArgs{Key: "k", Owner: 3, Fence: 9, Async: true, All: true})
		}, protocol.Request{Op: protocol.OpRelease, Key: b("k"), Owner: 3, Fence: 9,
			Flags: protocol.FlagAsync | protocol.FlagAll},
			func(id uint64) []byte { return protocol.AppendReleased(nil, id, 4) }, uint64(4)},
		{"renew", func() (any, error) { return c.Renew(ctx, "k", 3, 9, time.Second) },
			protocol.Request{Op: protocol.OpRenew, Key: b("k"), Owner: 3, Fence: 9, TTL: 1000},
			func(id uint64) []byte { return protocol.AppendGrant(nil, id, &g) }, g},
		{"downgrade", func() (any, error) { return c.Downgrade(ctx, "k", 3, 9) },
			protocol.Request{Op: protocol.OpDowngrade, Key: b("k"), Owner: 3, Fence: 9},
			func(id uint64) []byte { return protocol.AppendGrant(nil, id, &g) }, g},
		{"inspect", func() (any, error) { return c.Inspect(ctx, "k") },
			protocol.Request{Op: protocol.OpInspect, Key: b("k")},
			func(id uint64) []byte { return protocol.AppendInspected(nil, id, &st) }, st},
		{"acquire many", func() (any, error) {
			return c.AcquireMany(ctx, []string{"a", "b"}, AcquireArgs{Owner: 1, Wait: time.Second})
		}, protocol.Request{Op: protocol.OpAcquireMany, Keys: [][]byte{b("a"), b("b")},
			Owner: 1, Wait: 1000},
			func(id uint64) []byte { return protocol.AppendGrants(nil, id, []protocol.Grant{g, g}) },
			[]protocol.Grant{g, g}},
		{"release many", func() (any, error) {
			return c.ReleaseMany(ctx, []string{"a", "b"}, []uint64{5, 6}, ReleaseArgs{Owner: 1})
		}, protocol.Request{Op: protocol.OpReleaseMany, Keys: [][]byte{b("a"), b("b")},
			Fences: []uint64{5, 6}, Owner: 1},
			func(id uint64) []byte {
				return protocol.AppendCodes(nil, id, []protocol.Code{protocol.OK, protocol.NotHeld})
			}, []protocol.Code{protocol.OK, protocol.NotHeld}},
		{"ping", func() (any, error) { return c.Ping(ctx) }, protocol.Request{Op: protocol.OpPing},
			func(id uint64) []byte { return protocol.AppendPong(nil, id, 77) }, uint64(77)},
		{"list", func() (any, error) { r, n, err := c.List(ctx, "p", "q", 10); return []any{r, n}, err },
			protocol.Request{Op: protocol.OpList, Prefix: b("p"), After: b("q"), Limit: 10},
			func(id uint64) []byte { return protocol.AppendList(nil, id, rows, "next") },
			[]any{rows, "next"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := make(chan error, 1)
			var out any
			go func() {
				var err error
				out, err = tc.do()
				errs <- err
			}()
			q := p.next()
			id := q.ID
			q.ID = 0
			if len(q.Keys) == 0 {
				q.Keys = nil
			}
			if d := cmp.Diff(&tc.want, q); d != "" {
				t.Errorf("request (-want +got)\n%s", d)
			}
			p.send(tc.reply(id))
			if err := result(t, errs); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.out, out); d != "" {
				t.Errorf("result (-want +got)\n%s", d)
			}
		})
	}
	if w := c.Welcome(); w.Session != 7 || w.Daemon != "test" {
		t.Errorf("welcome %+v", w)
	}
}

func TestEveryCodeHasItsSentinel(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	want := []error{nil, ErrBusy, ErrTimeout, ErrNotHeld, ErrCanceled, ErrUpgrade, ErrUnavailable,
		ErrUnknown, ErrLimit,
		ErrInvalid, ErrUnsupported, ErrDraining, ErrDenied, ErrBadFrame, ErrBadVersion,
		ErrTooSlow, ErrOverlong}
	p.serve(func(b []byte, q *protocol.Request) []byte {
		return protocol.AppendError(b, q.ID, protocol.Code(q.Owner), "because", 1234)
	})
	for code := range want {
		if code == 0 {
			continue
		}
		_, err := c.Acquire(t.Context(), AcquireArgs{Key: "k", Owner: uint64(code)})
		for i, s := range want {
			if i > 0 && errors.Is(err, s) != (i == code) {
				t.Errorf("errors.Is(%v, %v) = %v", err, s, i != code)
			}
		}
		if !strings.Contains(err.Error(), "because") {
			t.Errorf("%v does not say why", err)
		}
		if e, ok := errors.AsType[*Error](err); !ok || e.Code == protocol.Busy && e.Detail != 1234 {
			t.Errorf("%#v", err)
		}
	}
	_, err := c.Acquire(t.Context(), AcquireArgs{Key: "k", Owner: 200})
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != 200 {
		t.Errorf("a code of a later version: %v", err)
	}
}

func TestRepliesMayComeInAnyOrder(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	const n = 200
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			g, err := c.Acquire(t.Context(), AcquireArgs{Key: fmt.Sprint("k", i), Wait: Forever})
			if err != nil || g.Fence != uint64(i)+1 {
				t.Errorf("acquire %d: fence %d, %v", i, g.Fence, err)
			}
		})
	}
	var out []byte
	for range n {
		q := p.next()
		var i uint64
		fmt.Sscanf(string(q.Key), "k%d", &i)
		out = append(protocol.AppendGrant(nil, q.ID, &protocol.Grant{Fence: i + 1}), out...)
	}
	for len(out) > 0 { // in pieces that end anywhere
		k := min(len(out), 13)
		p.send(out[:k])
		out = out[k:]
	}
	wg.Wait()
}

func TestEndOfContextWithdrawsTheAcquire(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, AcquireArgs{Key: "k", Wait: Forever})
		errs <- err
	}()
	a := p.next()
	cancel()
	if err := result(t, errs); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	q := p.next()
	if q.Op != protocol.OpCancel || q.Target != a.ID || string(q.Key) != "k" {
		t.Fatalf("after the end of its context: %+v", q)
	}
	p.send(protocol.AppendError(nil, a.ID, protocol.Canceled, "", 0))
	p.send(protocol.AppendCanceled(nil, q.ID, true))
	go c.Ping(t.Context())
	if q := p.next(); q.Op != protocol.OpPing {
		t.Errorf("after the cancel: %+v", q)
	}
}

func TestGrantThatCrossesTheCancelIsReleased(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	for _, many := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() {
			var err error
			if many {
				_, err = c.LockMany(ctx, []string{"a", "b"}, AcquireArgs{Owner: 4, Wait: Forever})
			} else {
				_, err = c.Lock(ctx, AcquireArgs{Key: "a", Owner: 4, Wait: Forever})
			}
			errs <- err
		}()
		a := p.next()
		cancel()
		if err := result(t, errs); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if q := p.next(); q.Op != protocol.OpCancel || q.Target != a.ID || string(q.Key) != "a" {
			t.Fatalf("after the end of its context: %+v", q)
		}
		if many {
			p.send(protocol.AppendGrants(nil, a.ID, []protocol.Grant{{Fence: 8}, {Fence: 9}}))
			for i, k := range []string{"a", "b"} {
				q := p.next()
				if q.Op != protocol.OpRelease || q.Owner != 4 || q.Fence != uint64(8+i) || string(q.Key) != k {
					t.Errorf("after the crossing: %+v", q)
				}
			}
		} else {
			p.send(protocol.AppendGrant(nil, a.ID, &protocol.Grant{Fence: 8, Count: 2}))
			q := p.next()
			if q.Op != protocol.OpRelease || q.Owner != 4 || q.Fence != 8 ||
				q.Flags != protocol.FlagNow ||
				string(q.Key) != "a" {
				t.Errorf("after the crossing: %+v", q)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls)+len(c.holds) != 0 {
		t.Errorf("%d calls, %d holds are left", len(c.calls), len(c.holds))
	}
}

func TestReleaseGoesOnWithoutItsCaller(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 1)
	go func() {
		_, err := c.Release(ctx, ReleaseArgs{Key: "k", Fence: 1})
		errs <- err
	}()
	q := p.next()
	cancel()
	if err := result(t, errs); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	p.send(protocol.AppendReleased(nil, q.ID, 0))
	go c.Ping(t.Context())
	if q := p.next(); q.Op != protocol.OpPing {
		t.Errorf("a release that nobody waits for is not withdrawn: %+v", q)
	}
}

func TestAfterEndedContextNothingIsSent(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Acquire(ctx, AcquireArgs{Key: "k"}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	go c.Ping(t.Context())
	if q := p.next(); q.Op != protocol.OpPing {
		t.Errorf("%+v", q)
	}
}

func TestPushesComeInTheOrderOfTheWire(t *testing.T) {
	got := make(chan any, 10)
	c, p := connect(t, Options{
		OnLost:      func(l Lost) { got <- l },
		OnKeepalive: func(b Keepalive) { got <- b },
		OnGoingAway: func(ms uint64, msg string) { got <- fmt.Sprint(ms, msg) },
		OnEnd:       func(err error) { got <- errors.Is(err, ErrTooSlow) && errors.Is(err, ErrClosed) },
	}, 0)
	var b []byte
	b = protocol.AppendKeepalive(b, 50, 5)
	b = protocol.AppendLost(b, "k", 1, 2, protocol.LostGone)
	b = append(b, 0, 0, 0, 3, 0x92, 127, 0) // an event of a later version
	b = protocol.AppendGoingAway(b, 99, "bye")
	b = protocol.AppendFatal(b, protocol.TooSlow, "read!")
	p.send(b)
	want := []any{Keepalive{50, 5}, Lost{"k", 1, 2, protocol.LostGone}, "99bye", true}
	for _, w := range want {
		if g := result(t, got); g != w {
			t.Errorf("got %v, want %v", g, w)
		}
	}
	result(t, c.Done())
	if _, err := c.Ping(t.Context()); !errors.Is(err, ErrTooSlow) {
		t.Errorf("after the end: %v", err)
	}
}

func TestHandlerMaySend(t *testing.T) {
	ends := make(chan error, 1)
	var c *Client
	ready := make(chan struct{})
	c, p := connect(t, Options{OnLost: func(l Lost) {
		<-ready
		_, err := c.Go(&protocol.Request{Op: protocol.OpAcquire, Key: []byte(l.Key), Wait: -1},
			func(r *Reply) { ends <- r.Err })
		if err != nil {
			t.Error(err)
		}
	}}, 0)
	close(ready)
	p.send(protocol.AppendLost(nil, "k", 1, 2, protocol.LostGone))
	q := p.next()
	if q.Op != protocol.OpAcquire || string(q.Key) != "k" {
		t.Fatalf("%+v", q)
	}
	p.send(protocol.AppendGrant(nil, q.ID, &protocol.Grant{Fence: 3}))
	if err := result(t, ends); err != nil {
		t.Error(err)
	}
}

func TestCancelOfAnAsynchronousAcquire(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	ends := make(chan error, 1)
	id, err := c.Go(&protocol.Request{Op: protocol.OpAcquire, Key: []byte("k"), Wait: -1},
		func(r *Reply) { ends <- r.Err })
	if err != nil {
		t.Fatal(err)
	}
	p.next()
	if err := c.Cancel(id, "k"); err != nil {
		t.Fatal(err)
	}
	if q := p.next(); q.Op != protocol.OpCancel || q.Target != id {
		t.Fatalf("%+v", q)
	}
	p.send(protocol.AppendError(nil, id, protocol.Canceled, "", 0))
	if err := result(t, ends); !errors.Is(err, ErrCanceled) {
		t.Error(err)
	}
}

func TestAllFollowsThePages(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	p.serve(func(b []byte, q *protocol.Request) []byte {
		next := map[string]string{"": "b", "b": "c", "c": ""}[string(q.After)]
		return protocol.AppendList(b, q.ID, []protocol.Row{{Key: string(q.After) + "1"},
			{Key: string(q.After) + "2"}}, next)
	})
	var keys []string
	for r, err := range c.All(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, r.Key)
	}
	if got := strings.Join(keys, " "); got != "1 2 b1 b2 c1 c2" {
		t.Error(got)
	}
}
