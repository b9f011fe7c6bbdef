package engine_test

import (
	"bytes"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// deaf is a client that takes everything and says nothing.
type deaf struct {
	t *testing.T
	s *engine.Session
}

// Flush reads what the daemon says, which has to be frames and messages.
func (d *deaf) Flush() {
	b := d.s.Swap(nil)
	for len(b) > 0 {
		p, rest, whole, err := protocol.Cut(b, 1<<20)
		if err != nil || !whole {
			d.t.Fatalf("the daemon says %x: %v", b, err)
		}
		if _, err := protocol.DecodeMessage(p); err != nil {
			d.t.Fatalf("the daemon says %x: %v", p, err)
		}
		b = rest
	}
}
func (d *deaf) Kill() {}

func (d *deaf) Yield() {}

// FuzzReceive: whatever two clients send, in whatever pieces, nothing panics, what they are told
// are messages, and nothing is left when they have gone.
func FuzzReceive(f *testing.F) {
	hello := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1,
		MaxVersion: 1, Name: []byte("fuzz")})
	k, l := []byte("k"), []byte("l")
	seed := hello
	for _, q := range []protocol.Request{
		{Op: protocol.OpAcquire, Key: k, Wait: protocol.WaitAlways},
		{Op: protocol.OpAcquire, Key: k, Mode: protocol.Shared, Owner: 2, Wait: protocol.WaitAlways,
			TTL: 1000, Flags: protocol.FlagFixed},
		{Op: protocol.OpAcquire, Key: l, Mode: protocol.Permit, Permits: 2},
		{Op: protocol.OpRelease, Key: k, Fence: 1 << 40, Flags: protocol.FlagAll | protocol.FlagQuiet},
		{Op: protocol.OpRenew, Key: k, Fence: 1 << 40, TTL: 5},
		{Op: protocol.OpDowngrade, Key: k, Fence: 1 << 40},
		{Op: protocol.OpCancel, Key: k, Target: 2},
		{Op: protocol.OpInspect, Key: l, Mode: protocol.Permit},
		{Op: protocol.OpAcquireMany, Keys: [][]byte{l, k}, Owner: 3, Wait: protocol.WaitAlways},
		{Op: protocol.OpReleaseMany, Keys: [][]byte{l, k}, Fences: []uint64{1, 2}},
		{Op: protocol.OpPing},
		{Op: protocol.OpList, Limit: 3},
		{Op: protocol.OpStored, Limit: 3, After: []byte("0:x")},
	} {
		q.ID = 2
		one := protocol.AppendRequest(nil, &q)
		f.Add(append(bytes.Clone(hello), one...), uint16(7))
		seed = append(bytes.Clone(seed), one...)
	}
	f.Add(seed, uint16(1))
	f.Add(seed, uint16(len(seed)/2))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint16(3))
	f.Fuzz(func(t *testing.T, b []byte, piece uint16) {
		e, settle := fuzzed(t)
		var both [2]*engine.Session
		var unread [2][]byte
		for i := range both {
			d := &deaf{t: t}
			both[i] = e.Open(engine.Peer{UID: i}, d)
			d.s = both[i]
		}
		for ended := 0; len(b) > 0 && ended != 3; {
			some := b[:min(len(b), int(piece)+1)]
			b = b[len(some):]
			for i, s := range both {
				if ended&(1<<i) != 0 {
					continue
				}
				left, ok := s.Receive(append(unread[i], some...))
				if unread[i] = bytes.Clone(left); !ok {
					ended |= 1 << i
				}
			}
			settle()
		}
		for _, s := range both {
			e.End(s)
		}
		settle()
		if left := e.Residue(); !left.None() {
			t.Fatalf("%v", left)
		}
	})
}

// fuzzed is an engine on the embedded store; settle has the store answer what it is asked.
func fuzzed(t *testing.T) (e *engine.Engine, settle func()) {
	t.Helper()
	st, err := embedded.Open(embedded.Options{Clock: renewer.Boottime})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	table := cache.DefaultConfig()
	table.MaxHolds, table.MaxWaiters, table.Seed = 8, 4, 1
	e = engine.NewEngine(engine.Settings{Table: table,
		Users:    engine.UserLimits{Conns: 1, Holds: 6, Waiters: 3},
		MaxFrame: protocol.DefaultMaxFrame, OutBuffer: 1 << 20, InFlight: 1,
		BatchSize: 8}, renewer.Boottime, func(int64) {})
	sl, err := e.AddStore("store", st.Info(), nil)
	if err == nil {
		err = e.Route([]engine.Namespace{{Store: "store"},
			{Prefix: "l", Store: "store", Users: []int{0}, MaxHolds: 2}}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e, func() {
		for step := 0; ; step++ {
			e.Tick()
			b := sl.Main().Next()
			lane := sl.Main()
			if b == nil {
				lane = sl.Renewals()
				b = lane.Next()
			}
			if b == nil {
				return
			}
			if step > 10_000 {
				t.Fatalf("the store is asked without end: %+v", b.Ops)
			}
			b.Sent = renewer.Boottime()
			if err := st.Apply(t.Context(), b.Ops, b.Results); err != nil {
				t.Fatal(err)
			}
			e.Deliver(b)
			lane.Done(b)
		}
	}
}
