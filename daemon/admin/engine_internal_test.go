package admin

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// client is the client of a session in an engine without sockets.
type client struct {
	s     *engine.Session
	reads []byte
}

func (c *client) Flush() { c.reads = c.s.Swap(c.reads) }
func (c *client) Kill()  {}
func (c *client) Yield() {}

// greet opens a session and says hello.
func greet(e *engine.Engine, p engine.Peer, name, label string) *client {
	c := &client{}
	c.s = e.Open(p, c)
	c.send(&protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1, MaxVersion: 1, Name: []byte(name), Label: []byte(label)})
	return c
}

func (c *client) send(q *protocol.Request) { c.s.Receive(protocol.AppendRequest(nil, q)) }

// small is an engine with one store, and that store.
type small struct {
	*engine.Engine
	lane  *engine.StoreLane
	store upstream.Store
}

// newSmall makes an engine whose store is of the kind that info says.
func newSmall(t *testing.T, clock upstream.Clock, info upstream.Info, firstID uint64) small {
	t.Helper()
	store, err := embedded.Open(embedded.Options{Clock: clock, Session: 10 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	e := engine.NewEngine(engine.Settings{Table: cache.DefaultConfig(), MaxFrame: protocol.DefaultMaxFrame, OutBuffer: 1 << 20,
		InFlight: 1, BatchSize: 64, FirstID: firstID}, clock, func(int64) {})
	info.Rebase, info.Timeout = true, time.Second
	u, err := e.AddStore("", info, nil)
	if err == nil {
		err = e.Route([]engine.Namespace{{}}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return small{e, u, store}
}

// answer has the store carry out what waits for it.
func (e small) answer(t *testing.T, clock upstream.Clock) {
	t.Helper()
	for b := e.lane.Main().Next(); b != nil; b = e.lane.Main().Next() {
		b.Sent = clock()
		if err := e.store.Apply(t.Context(), b.Ops, b.Results); err != nil {
			t.Fatal(err)
		}
		e.Deliver(b)
		e.lane.Main().Done(b)
	}
}

// lock has a client acquire n keys.
func (e small) lock(t *testing.T, clock upstream.Clock, c *client, n int) {
	t.Helper()
	for i := range n {
		c.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: fmt.Append(nil, "key:", i)})
		e.answer(t, clock)
	}
	if held := e.Held(); held != int64(n) {
		t.Fatalf("%d locks are held, want %d", held, n)
	}
}
