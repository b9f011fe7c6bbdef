package daemon

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// sink is a transport that reads everything at once.
type sink struct {
	s   *Session
	buf []byte
}

func (k *sink) Flush() { k.buf = k.s.swap(k.buf) }
func (k *sink) Kill()  {}

// last is the last message that was flushed.
func (k *sink) last(t testing.TB) protocol.Message {
	var m protocol.Message
	for b := k.buf; ; {
		p, rest, ok, err := protocol.Cut(b, protocol.DefaultMaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return m
		}
		if m, err = protocol.DecodeMessage(p); err != nil {
			t.Fatal(err)
		}
		b = rest
	}
}

func testEngine(t testing.TB) *Engine {
	store, err := embedded.Open(embedded.Options{Clock: renewer.Boottime, Session: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	e := NewEngine(Settings{Table: cache.DefaultConfig(), TTL: 30 * time.Second, MaxTTL: time.Hour,
		MaxFrame: protocol.DefaultMaxFrame, OutBuffer: 1 << 20, InFlight: 1, BatchSize: 64},
		store.Info(), store, renewer.Boottime, func(int64) {})
	t.Cleanup(func() { // what could not be answered inline, the first acquire
		for b := e.main.Next(); b != nil; b = e.main.Next() {
			e.main.Done(b)
		}
	})
	// The session begins with the first op, which is not inline.
	s, k := open(t, e)
	send(s, &protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte("first")})
	if b := e.main.Next(); b != nil {
		b.Sent = e.clock()
		_ = store.Apply(t.Context(), b.Ops, b.Results)
		e.Deliver(b)
		e.main.Done(b)
	}
	if m := k.last(t); m.Code != protocol.OK || m.ID != 2 {
		t.Fatal(m.Code)
	}
	return e
}

func open(t testing.TB, e *Engine) (*Session, *sink) {
	k := &sink{}
	k.s = e.Open(Peer{}, k)
	send(k.s, &protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1, MaxVersion: 1})
	if m := k.last(t); m.Code != protocol.OK {
		t.Fatal(m.Code)
	}
	return k.s, k
}

func send(s *Session, q *protocol.Request) { s.Receive(protocol.AppendRequest(nil, q)) }

func lockFor(t testing.TB, s *Session, k *sink, key string, wait int64) uint64 {
	send(s, &protocol.Request{Op: protocol.OpAcquire, ID: 5, Key: []byte(key), Wait: wait})
	m := k.last(t)
	g, err := m.Grant()
	if m.Code != protocol.OK || err != nil {
		t.Fatal(m.Code, err)
	}
	return g.Fence
}

// The requests of the local path: what they cost and what they allocate.
func BenchmarkLocal(b *testing.B) {
	e := testEngine(b)
	key := []byte("order:42")
	b.Run("re-entry", func(b *testing.B) {
		s, k := open(b, e)
		fence := lockFor(b, s, k, "order:42", 0)
		in := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: key})
		in = protocol.AppendRequest(in, &protocol.Request{Op: protocol.OpRelease, ID: 8, Key: key, Fence: fence})
		b.ReportAllocs()
		for b.Loop() {
			s.Receive(in)
		}
		e.End(s)
	})
	b.Run("busy-try", func(b *testing.B) {
		s, k := open(b, e)
		lockFor(b, s, k, "order:42", 0)
		o, _ := open(b, e)
		in := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: key})
		b.ReportAllocs()
		for b.Loop() {
			o.Receive(in)
		}
		e.End(s)
		e.End(o)
	})
	b.Run("hand-over", func(b *testing.B) {
		var ss [2]*Session
		var kk [2]*sink
		for i := range ss {
			ss[i], kk[i] = open(b, e)
		}
		fence := lockFor(b, ss[0], kk[0], "order:42", 0)
		wait := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: key, Wait: -1})
		var in []byte
		q := protocol.Request{Op: protocol.OpRelease, ID: 8, Key: key}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			ss[(i+1)%2].Receive(wait)
			q.Fence = fence
			in = protocol.AppendRequest(in[:0], &q)
			ss[i%2].Receive(in)
			m := kk[(i+1)%2].last(b)
			g, _ := m.Grant()
			fence = g.Fence
		}
		e.End(ss[0])
		e.End(ss[1])
	})
	b.Run("acquire-release", func(b *testing.B) {
		s, k := open(b, e)
		var in []byte
		q := protocol.Request{Op: protocol.OpRelease, ID: 8, Key: key}
		acq := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: key})
		b.ReportAllocs()
		for b.Loop() {
			s.Receive(acq)
			m := k.last(b)
			g, _ := m.Grant()
			q.Fence = g.Fence
			in = protocol.AppendRequest(in[:0], &q)
			s.Receive(in)
		}
		e.End(s)
	})
}
