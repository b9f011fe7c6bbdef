// Package enginetest runs an engine with one store for the tests of other packages, with clients
// that need no sockets, and a clock that the test sets.
package enginetest

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

// Client is the client of a session.
type Client struct {
	Session *engine.Session
	reads   []byte
}

// Flush takes the output of the session.
func (c *Client) Flush() { c.reads = c.Session.Swap(c.reads) }

// Kill does nothing.
func (c *Client) Kill() {}

// Yield does nothing.
func (c *Client) Yield() {}

// Send has the session read a request.
func (c *Client) Send(q *protocol.Request) { c.Session.Receive(protocol.AppendRequest(nil, q)) }

// Engine is an engine with one store.
type Engine struct {
	*engine.Engine
	Lane  *engine.StoreLane
	store upstream.Store
	clock upstream.Clock
}

// New makes an engine whose store is of the kind that info says. The number of its first session is
// firstID + 1.
func New(t testing.TB, clock upstream.Clock, info upstream.Info, firstID uint64) Engine {
	t.Helper()
	store, err := embedded.Open(embedded.Options{Clock: clock, Session: 10 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	e := engine.NewEngine(engine.Settings{Table: cache.DefaultConfig(),
		MaxFrame: protocol.DefaultMaxFrame, OutBuffer: 1 << 20,
		InFlight: 1, BatchSize: 64, FirstID: firstID}, clock, func(int64) {})
	info.Rebase, info.Timeout = true, time.Second
	sl, err := e.AddStore("", info, nil)
	if err == nil {
		err = e.Route([]engine.Namespace{{}}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return Engine{e, sl, store, clock}
}

// Greet opens a session and says hello.
func (e Engine) Greet(p engine.Peer, name, label string) *Client {
	c := &Client{}
	c.Session = e.Open(p, c)
	c.Send(&protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1, MaxVersion: 1,
		Name: []byte(name), Label: []byte(label)})
	return c
}

// answer has the store carry out the ops that wait for it.
func (e Engine) answer(t testing.TB) {
	t.Helper()
	for b := e.Lane.Main().Next(); b != nil; b = e.Lane.Main().Next() {
		b.Sent = e.clock()
		if err := e.store.Apply(t.Context(), b.Ops, b.Results); err != nil {
			t.Fatal(err)
		}
		e.Deliver(b)
		e.Lane.Main().Done(b)
	}
}

// Lock has a client acquire n keys.
func (e Engine) Lock(t testing.TB, c *Client, n int) {
	t.Helper()
	for i := range n {
		c.Send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: fmt.Append(nil, "key:", i)})
		e.answer(t)
	}
	if held := e.Held(); held != int64(n) {
		t.Fatalf("%d locks are held, want %d", held, n)
	}
}
