package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// prompt is a client that reads at once, and how its session has ended.
type prompt struct {
	s      *Session
	buf    []byte
	killed bool
}

func (p *prompt) Flush() { p.buf = append(p.buf, p.s.Swap(nil)...) }
func (p *prompt) Kill()  { p.killed = true }
func (p *prompt) Yield() {}

// openPrompt opens the session of a client that reads at once.
func openPrompt(e *Engine) *prompt {
	p := &prompt{}
	p.s = e.Open(Peer{}, p)
	send(p.s, &protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1, MaxVersion: 1})
	p.buf = nil
	return p
}

// A client that reads gets every page that it has asked for, also if the outbox is smaller than a
// page, and if the requests came together.
func TestPagesMayExceedTheOutbox(t *testing.T) {
	b := newBeating(t)
	p := openPrompt(b.e)
	for i := range 300 {
		b.acquire(fmt.Sprintf("%0100d", i), 0)
	}
	b.e.SetLimits(Limits{MaxHolds: 1000, MaxWaiters: 1000, MaxFrame: protocol.DefaultMaxFrame,
		OutBuffer: 4 << 10})
	var in []byte
	const pages = 20
	for i := range uint64(pages) {
		in = protocol.AppendRequest(in, &protocol.Request{Op: protocol.OpList, ID: i + 2,
			Limit: protocol.MaxList})
	}
	p.buf = nil
	p.s.Receive(in)
	all := messages(t, p.buf)
	for i := range all {
		rows, _, err := all[i].List()
		if all[i].Code != protocol.OK || len(rows) < 100 || err != nil {
			t.Fatalf("message %d: %v, event %v, %d rows, %v",
				i, all[i].Code, all[i].Event, len(rows), err)
		}
	}
	if len(all) != pages || p.killed {
		t.Errorf("%d of %d pages, ended: %v", len(all), pages, p.killed)
	}
}

// An error of a store may have any length and any bytes. The clients get text that fits into every
// frame.
func TestErrorsOfStoresAreText(t *testing.T) {
	for _, text := range []string{strings.Repeat("\xff", 1<<17), strings.Repeat("ä", 1<<17)} {
		for _, q := range []*protocol.Request{
			{Op: protocol.OpAcquire, Key: []byte("k")},
			{Op: protocol.OpAcquireMany, Keys: [][]byte{[]byte("k")}},
			{Op: protocol.OpAcquireAny,
				Keys: [][]byte{[]byte(strings.Repeat("\u200b", 170)), []byte("l")}},
			{Op: protocol.OpInspect, Key: []byte("k")},
		} {
			b := newBeating(t)
			p := openPrompt(b.e)
			q.ID = 2
			send(p.s, q)
			for batch := b.u.main.Next(); batch != nil; batch = b.u.main.Next() {
				batch.Sent = b.now.Load()
				for i := range batch.Results {
					batch.Results[i] = cache.Result{Status: cache.Refused, Left: -1, Err: errors.New(text)}
				}
				b.e.Deliver(batch)
				b.u.main.Done(batch)
			}
			all := messages(t, p.buf)
			if len(all) != 1 {
				t.Fatalf("%v: %d messages", q.Op, len(all))
			}
			if len(p.buf) > 4<<10 {
				t.Errorf("%v: a frame of %d bytes", q.Op, len(p.buf))
			}
			msg, _, err := all[0].Error()
			if all[0].Code != protocol.Unavailable || !utf8.ValidString(msg) || msg == "" || err != nil {
				t.Errorf("%v: %v, %q, %v", q.Op, all[0].Code, msg, err)
			}
		}
	}
}

// A client that reads is told of each lost hold when a store session ends, however many there are:
// it does not count as one that does not read.
func TestManyLossesDoNotFillTheOutbox(t *testing.T) {
	var jump atomic.Int64
	clock := func() int64 { return renewer.Boottime() + jump.Load() }
	store, err := embedded.Open(embedded.Options{Clock: clock, Session: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	e := NewEngine(Settings{Table: cache.DefaultConfig(), MaxFrame: protocol.DefaultMaxFrame,
		OutBuffer: 4 << 10, InFlight: 1, BatchSize: 64}, clock, func(int64) {})
	sl, err := e.AddStore("", store.Info(), store)
	if err == nil {
		err = e.Route([]Namespace{{}}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := openPrompt(e)
	const n = 5000
	for i := range uint64(n) {
		send(p.s, &protocol.Request{Op: protocol.OpAcquire, ID: i + 2,
			Key: fmt.Appendf(nil, "%0*d", protocol.MaxKey, i)})
		for batch := sl.main.Next(); batch != nil; batch = sl.main.Next() {
			batch.Sent = clock()
			if err := store.Apply(t.Context(), batch.Ops, batch.Results); err != nil {
				t.Fatal(err)
			}
			e.Deliver(batch)
			sl.main.Done(batch)
		}
	}
	if held := e.Held(); held != n {
		t.Fatalf("%d of %d holds", held, n)
	}
	p.buf = nil
	jump.Store(int64(2 * time.Hour))
	for e.Held() > 0 && !p.killed {
		e.Tick()
	}
	lost := 0
	for _, m := range messages(t, p.buf) {
		if m.ID == 0 && m.Event == protocol.EventLost {
			lost++
		}
	}
	if lost != n || p.killed {
		t.Errorf("%d of %d losses, ended: %v", lost, n, p.killed)
	}
}

// A client that does not read is ended once its outbox is full, whether its requests come one by
// one or together.
func TestAFullOutboxEndsTheSession(t *testing.T) {
	for _, together := range []int{1, 32} {
		b := newBeating(t)
		b.e.SetLimits(Limits{MaxHolds: 1000, MaxWaiters: 1000, MaxFrame: protocol.DefaultMaxFrame,
			OutBuffer: 4 << 10})
		d := &stalled{}
		s := b.e.Open(Peer{}, d)
		send(s, &protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1, MaxVersion: 1})
		peak := 0
		for id := uint64(2); id < 10_000 && !d.killed; {
			var in []byte
			for range together {
				in = protocol.AppendRequest(in, &protocol.Request{Op: protocol.OpPing, ID: id})
				id++
			}
			s.Receive(in)
			peak = max(peak, len(s.Output()))
		}
		if !d.killed || peak > 8<<10 {
			t.Errorf("%d at once: up to %d bytes waited, ended: %v", together, peak, d.killed)
		}
	}
}

// stalled is a client that reads nothing, and whether its session has been ended.
type stalled struct{ killed bool }

func (d *stalled) Flush() {}
func (d *stalled) Kill()  { d.killed = true }
func (d *stalled) Yield() {}
