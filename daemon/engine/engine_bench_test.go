package engine

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

func (k *sink) Flush() { k.buf = k.s.Swap(k.buf) }
func (k *sink) Kill()  {}
func (k *sink) Yield() {}

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

// messages decodes the frames of b.
func messages(t testing.TB, b []byte) (all []protocol.Message) {
	t.Helper()
	for {
		p, rest, ok, err := protocol.Cut(b, protocol.DefaultMaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return all
		}
		m, err := protocol.DecodeMessage(p)
		if err != nil {
			t.Fatal(err)
		}
		all, b = append(all, m), rest
	}
}

func testEngine(t testing.TB) *Engine {
	store, err := embedded.Open(embedded.Options{Clock: renewer.Boottime, Session: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	e := NewEngine(Settings{Table: cache.DefaultConfig(), MaxFrame: protocol.DefaultMaxFrame,
		OutBuffer: 1 << 20,
		InFlight:  1, BatchSize: 64}, renewer.Boottime, func(int64) {})
	sl, err := e.AddStore("", store.Info(), store)
	if err == nil {
		err = e.Route([]Namespace{{}}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // what could not be answered inline, the first acquire
		for b := sl.main.Next(); b != nil; b = sl.main.Next() {
			sl.main.Done(b)
		}
	})
	// The session begins with the first op, which is not inline.
	s, k := open(t, e)
	send(s, &protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte("first")})
	if b := sl.main.Next(); b != nil {
		b.Sent = e.clock()
		_ = store.Apply(t.Context(), b.Ops, b.Results)
		e.Deliver(b)
		sl.main.Done(b)
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

// prepared is something to measure: prepare returns one step of it, and what ends it.
type prepared struct {
	name    string
	prepare func(t testing.TB, e *Engine) (step, end func())
}

// local is what this host decides alone.
var local = []prepared{
	{"re-entry", func(t testing.TB, e *Engine) (step, end func()) {
		s, k := open(t, e)
		fence := lockFor(t, s, k, "order:42", 0)
		in := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: 7,
			Key: []byte("order:42")})
		in = protocol.AppendRequest(in, &protocol.Request{Op: protocol.OpRelease, ID: 8,
			Key: []byte("order:42"), Fence: fence})
		return func() { s.Receive(in) }, func() { e.End(s) }
	}},
	{"busy-try", func(t testing.TB, e *Engine) (step, end func()) {
		s, k := open(t, e)
		lockFor(t, s, k, "order:42", 0)
		o, _ := open(t, e)
		in := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: 7,
			Key: []byte("order:42")})
		return func() { o.Receive(in) }, func() { e.End(s); e.End(o) }
	}},
	{"handoff", func(t testing.TB, e *Engine) (step, end func()) {
		var ss [2]*Session
		var kk [2]*sink
		for i := range ss {
			ss[i], kk[i] = open(t, e)
		}
		q := protocol.Request{Op: protocol.OpRelease, ID: 8, Key: []byte("order:42")}
		q.Fence = lockFor(t, ss[0], kk[0], "order:42", 0)
		wait := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: 7,
			Key: q.Key, Wait: -1})
		var in []byte
		i := 0
		return func() {
			ss[1-i].Receive(wait)
			in = protocol.AppendRequest(in[:0], &q)
			ss[i].Receive(in)
			i = 1 - i
			m := kk[i].last(t)
			g, _ := m.Grant()
			q.Fence = g.Fence
		}, func() { e.End(ss[0]); e.End(ss[1]) }
	}},
	{"acquire-release", func(t testing.TB, e *Engine) (step, end func()) {
		s, k := open(t, e)
		q := protocol.Request{Op: protocol.OpRelease, ID: 8, Key: []byte("order:42")}
		acquire := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire,
			ID: 7, Key: q.Key})
		var in []byte
		return func() {
			s.Receive(acquire)
			m := k.last(t)
			g, _ := m.Grant()
			q.Fence = g.Fence
			in = protocol.AppendRequest(in[:0], &q)
			s.Receive(in)
		}, func() { e.End(s) }
	}},
}

func BenchmarkLocal(b *testing.B) { benchmark(b, local) }

// benchmark measures the steps of each of these, in one engine.
func benchmark(b *testing.B, all []prepared) {
	e := testEngine(b)
	for _, l := range all {
		b.Run(l.name, func(b *testing.B) {
			step, end := l.prepare(b, e)
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
			end()
		})
	}
}

// Only the acquire of a key without a lease allocates memory.
func TestTheLocalPathDoesNotAllocate(t *testing.T) {
	e := testEngine(t)
	for _, l := range local {
		step, end := l.prepare(t, e)
		most := 0.0
		if l.name == "acquire-release" {
			most = 3
		}
		if n := testing.AllocsPerRun(200, step); n > most {
			t.Errorf("%s: %v allocations", l.name, n)
		}
		end()
	}
}
