package engine

import (
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

// joined has further cases that this host decides alone, prepared as in local. In one, a reader
// joins others and leaves. In the others, a release serves the next waiter of a queue; the release
// is answered or quiet.
var joined = []prepared{
	{"shared join", func(t testing.TB, e *Engine) (step, end func()) {
		s, _ := open(t, e)
		q := protocol.Request{Op: protocol.OpAcquire, ID: 5, Key: []byte("report"), Mode: protocol.Shared}
		send(s, &q)
		o, k := open(t, e)
		join := protocol.AppendRequest(nil, &q)
		release := protocol.Request{Op: protocol.OpRelease, ID: 6, Key: q.Key}
		var in []byte
		return func() {
			o.Receive(join)
			release.Fence = k.fence(t, q.ID)
			in = protocol.AppendRequest(in[:0], &release)
			o.Receive(in)
			if m := k.last(t); m.Code != protocol.OK || m.ID != release.ID {
				t.Fatal(m.ID, m.Code)
			}
		}, func() { e.End(s); e.End(o) }
	}},
	{"handoff in a queue of 64", func(t testing.TB, e *Engine) (step, end func()) {
		return queue(t, e, 0)
	}},
	{"quiet handoff in a queue of 64", func(t testing.TB, e *Engine) (step, end func()) {
		return queue(t, e, protocol.FlagQuiet)
	}},
}

// fence returns the fence of the grant that was flushed last, which must answer request id.
func (k *sink) fence(t testing.TB, id uint64) uint64 {
	m := k.last(t)
	g, err := m.Grant()
	if m.Code != protocol.OK || m.ID != id || err != nil {
		t.Fatal(m.ID, m.Code, err)
	}
	return g.Fence
}

// queue has 64 sessions on one key. In a step the one that holds it gives it up and
// queues again, in one read, and the next one gets it.
func queue(t testing.TB, e *Engine, flags uint64) (step, end func()) {
	var ss [64]*Session
	var kk [64]*sink
	for i := range ss {
		ss[i], kk[i] = open(t, e)
	}
	release := protocol.Request{Op: protocol.OpRelease, ID: 8, Key: []byte("queue"), Flags: flags}
	release.Fence = lockFor(t, ss[0], kk[0], "queue", 0)
	wait := protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: release.Key,
		Wait: protocol.WaitAlways}
	for _, s := range ss[1:] {
		send(s, &wait)
	}
	var in []byte
	i := 0
	return func() {
			in = protocol.AppendRequest(in[:0], &release)
			in = protocol.AppendRequest(in, &wait)
			ss[i].Receive(in)
			i = (i + 1) % len(ss)
			release.Fence = kk[i].fence(t, wait.ID)
		}, func() {
			for _, s := range ss {
				e.End(s)
			}
		}
}

func BenchmarkJoined(b *testing.B) { benchmark(b, joined) }

func TestJoiningAndQueueingDoNotAllocate(t *testing.T) {
	e := testEngine(t)
	for _, l := range joined {
		step, end := l.prepare(t, e)
		for range 2 * 64 { // every session's buffers have the size that they keep
			step()
		}
		if n := testing.AllocsPerRun(1000, step); n != 0 {
			t.Errorf("%s: %v allocations", l.name, n)
		}
		end()
	}
}
