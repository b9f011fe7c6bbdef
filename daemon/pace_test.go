package daemon_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

func rated(n int) func(*daemon.Config) {
	return func(c *daemon.Config) { c.Limits.Users.Rate = n }
}

// setRate reloads with that limit of each user, in requests a second; 0 is without bound.
func (h *host) setRate(rate int) {
	h.t.Helper()
	next := serving(h.store)
	next.Limits.Users.Rate = rate
	if err := h.d.Reload(next); err != nil {
		h.t.Fatal(err)
	}
}

// inspectMany asks n times without a wait between; it returns when all have been answered.
func inspectMany(t *testing.T, c *client.Client, n int) {
	t.Helper()
	done := make(chan error, n)
	for range n {
		go func() {
			_, err := c.Inspect(t.Context(), "a")
			done <- err
		}()
	}
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// Requests above the rate of a user are delayed, on all connections of the user together, and none
// is refused.
func TestRateOfAUser(t *testing.T) {
	h := start(t, nil, rated(2000))
	began := time.Now()
	for range 4 {
		inspectMany(t, h.dial(client.Options{}), 400)
	}
	// The last one's are read when those before it are over, but for what may come at once and what is
	// read with them.
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("1,600 requests at 2,000 a second took %v", took)
	}
	// else the machine was slower
	if off := h.d.Totals().Throttled; off == 0 && time.Since(began) < 600*time.Millisecond {
		t.Error("nothing was put off")
	}
}

// A change of the limit applies to existing connections, too.
func TestRateOfAUserChanges(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	inspectMany(t, c, 5000)
	if off := h.d.Totals().Throttled; off != 0 {
		t.Errorf("%v were put off without a limit", time.Duration(off))
	}
	h.setRate(5)
	inspectMany(t, c, 1)
	eventually(t, "it is put off", func() bool { return h.d.Totals().Throttled > 0 })
}

// A program asks much faster than its user may. The user's other connections are answered
// meanwhile: their clients would take the daemon for hung otherwise, and it would take them for
// silent.
func TestAHastyProgramDoesNotSilenceItsUsersOthers(t *testing.T) {
	h := start(t, nil, nil)
	hasty, other := h.raw().hello(), h.raw().hello()
	h.setRate(1)
	const n = 200 // more seconds' worth than the bound of this test
	var all []byte
	for i := range uint64(n) {
		all = protocol.AppendRequest(all, &protocol.Request{Op: protocol.OpPing, ID: 2 + i})
	}
	hasty.bytes(all)
	hasty.next()
	for i := range uint64(2) {
		other.send(&protocol.Request{Op: protocol.OpPing, ID: 2 + i})
		if m := other.next(); m.ID != 2+i {
			t.Fatalf("%+v", m)
		}
	}
	h.raw().hello()
	h.setRate(0)
	for i := range uint64(n - 1) {
		if m := hasty.next(); m.ID != 3+i {
			t.Fatalf("%+v", m)
		}
	}
}

// A client asks for so much that the daemon reads nothing of it for far longer than the heartbeat,
// not even answers to keepalives. It is not silent, and nothing that it holds is lost.
func TestAClientThatIsDelayedIsNotSilent(t *testing.T) {
	t.Parallel()
	h := start(t, nil, nil)
	reload := func(rate int) {
		next := serving(h.store)
		next.Namespaces, next.Limits.Users.Rate = []engine.Namespace{{Store: "store",
			Heartbeat: patience}}, rate
		if err := h.d.Reload(next); err != nil {
			t.Fatal(err)
		}
	}
	reload(1)
	defer reload(0) // so that all is read
	b := newBeats()
	b.lost = make(chan client.Lost, 100)
	c := h.dial(b.options())
	keys := make([]string, 60) // a minute's work
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	gs, err := c.AcquireMany(t.Context(), keys, client.AcquireArgs{})
	if err != nil {
		t.Fatal(err)
	}
	b.beyond(t, gs[0])
	b.beyond(t, protocol.Grant{Deadline: gs[0].Deadline + uint64(patience/time.Millisecond)})
	if off := h.d.Totals().Throttled; off < int64(10*patience) {
		t.Errorf("requests were put off for %v only", time.Duration(off))
	}
}

// Beside a hasty program, another connection of its user waits for one second after each request.
// It does not wait again when no request is left, nor for each part of a frame.
func TestAConnectionBesideAHastyProgramWaitsOnceForARequest(t *testing.T) {
	h := start(t, nil, nil)
	hasty, other := h.raw().hello(), h.raw().hello()
	h.setRate(1)
	defer h.setRate(0)         // the hasty one's end is read then
	keys := make([][]byte, 50) // more seconds' worth than this test takes
	for i := range keys {
		keys[i] = []byte{'k', byte('A' + i)}
	}
	hasty.send(&protocol.Request{Op: protocol.OpAcquireMany, ID: 2, Keys: keys, TTL: 30_000})
	if m := hasty.next(); m.Code != protocol.OK {
		t.Fatalf("%+v", m)
	}
	eventually(t, "it is put off", func() bool { return h.d.Totals().Throttled > 0 })
	before := h.d.Totals().Throttled
	for i := range uint64(3) {
		b := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpPing, ID: 2 + i})
		read := h.d.BytesRead()
		other.bytes(b[:3])
		eventually(t, "a part of the frame is read", func() bool { return h.d.BytesRead() >= read+3 })
		other.bytes(b[3:])
		if m := other.next(); m.ID != 2+i {
			t.Fatalf("%+v", m)
		}
	}
	// It waits after the third one, too, but may not have begun.
	if off := time.Duration(h.d.Totals().Throttled - before); off > 3*time.Second {
		t.Errorf("three requests of the other connection were put off by %v", off)
	}
}

// A connection that has to wait for a minute, because it has asked for so much, is closed. What it
// holds is released before that minute is over.
func TestADisconnectOfADelayedClientIsRelease(t *testing.T) {
	h := start(t, nil, nil)
	c, next := h.raw().hello(), h.raw().hello()
	h.setRate(1)
	keys := make([][]byte, 60)
	for i := range keys {
		keys[i] = fmt.Append(nil, "k", i)
	}
	c.send(&protocol.Request{Op: protocol.OpAcquireMany, ID: 2, Keys: keys, TTL: 30_000})
	if m := c.next(); m.Code != protocol.OK {
		t.Fatalf("%+v", m)
	}
	eventually(t, "it waits", func() bool { return h.d.Totals().Throttled > 0 })
	c.send(&protocol.Request{Op: protocol.OpPing, ID: 3})
	_ = c.Close()
	next.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: keys[7], TTL: 30_000,
		Wait: protocol.WaitAlways})
	if m := next.next(); m.ID != 2 || m.Code != protocol.OK {
		t.Fatalf("%+v", m)
	}
}
