package daemon_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/audit"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

var errKeep = errors.New("the manager keeps nothing")

// A store that a reload has dropped, and that has no users, does not stand in the way of a
// takeover. Its end and the takeover do not wait for each other.
func TestAnEmptyStoreIsLeftBeforeATakeover(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	for range 10 {
		second, closed := inMemory(t), make(chan struct{})
		both := serving(h.store)
		both.Stores = append(both.Stores, daemon.StoreConfig{Name: "second", Store: second,
			Close: func() {
				_ = second.Close()
				close(closed)
			}})
		both.Namespaces = []engine.Namespace{{Store: "store"}, {Prefix: "a", Store: "second"}}
		if err := h.d.Reload(both); err != nil {
			t.Fatal(err)
		}
		release(t, c, "a", 0, acquire(t, c, client.AcquireArgs{Key: "a"}).Fence)
		if err := h.d.Reload(serving(h.store)); err != nil {
			t.Fatal(err)
		}
		if err := h.d.Park(func([]int) error { return errKeep }); !errors.Is(err, errKeep) {
			t.Error(err)
		}
		select {
		case <-closed:
		case <-time.After(bound):
			t.Fatal("the store is never closed")
		}
	}
	release(t, c, "b", 0, acquire(t, c, client.AcquireArgs{Key: "b"}).Fence)
}

// The end of a session during a freeze hands its locks to clients whose sockets are full. They get
// every grant, whenever their writers were started. This is also for the race detector.
func TestASessionEndsDuringATakeover(t *testing.T) {
	t.Parallel()
	const clients, keys = 4, 4000 // as many grants as fill a socket
	h := start(t, nil, nil)
	requests := func(r *raw, first int, wait int64) {
		var b []byte
		for i := range keys {
			b = protocol.AppendRequest(b, &protocol.Request{Op: protocol.OpAcquire,
				ID: uint64(2 + first + i), Key: fmt.Append(nil, first+i), Wait: wait})
		}
		r.bytes(b)
	}
	granted := func(r *raw) {
		for got := 0; got < keys; {
			m := r.next()
			if m.ID == 0 {
				continue
			}
			if m.Code != protocol.OK {
				t.Fatalf("request %d is answered with %v", m.ID, m.Code)
			}
			got++
		}
	}
	var next [clients]*raw
	for i := range next {
		next[i] = h.raw().hello()
	}
	holder := h.raw().hello()
	for i := range next {
		requests(holder, i*keys, 0)
		granted(holder)
		requests(next[i], i*keys, protocol.WaitAlways)
	}
	waiting := func() int64 { return h.d.Totals().Classes[0].Waiters }
	eventually(t, "all are waited for", func() bool { return waiting() == clients*keys })
	_ = holder.Close()
	eventually(t, "its end has begun", func() bool { return waiting() < clients*keys })
	if err := h.d.Park(func([]int) error { return errKeep }); !errors.Is(err, errKeep) {
		t.Fatal(err)
	}
	for _, r := range next {
		granted(r)
		_ = r.Close()
	}
}

// unlocking ends the holds of k by force, and says what came of it.
func (h *host) unlocking() <-chan error {
	answered := make(chan error, 1)
	go func() {
		u, err := h.d.Unlock("k", false, 0, engine.Peer{})
		if err == nil && u.Released != 1 {
			err = fmt.Errorf("%d holds released", u.Released)
		}
		answered <- err
	}()
	return answered
}

// A forced unlock waits while a snapshot is made, and is carried out if this process continues to
// serve. This is also for the race detector.
func TestUnlocksDuringAFailedTakeover(t *testing.T) {
	h := start(t, nil, nil)
	for i := range 20 {
		c := h.dial(client.Options{})
		acquire(t, c, client.AcquireArgs{Key: "k", TTL: time.Minute})
		var answered <-chan error
		if err := h.d.Park(func([]int) error {
			answered = h.unlocking()
			if i == 0 {
				time.Sleep(100 * time.Millisecond) // so that it would be answered, if it did not wait
			}
			if len(answered) > 0 {
				t.Error("it is answered although another process may continue with the hold")
			}
			return errKeep
		}); !errors.Is(err, errKeep) {
			t.Fatal(err)
		}
		if err := <-answered; err != nil {
			t.Error(err)
		}
		_ = c.Close()
		eventually(t, "nothing is held", func() bool { return h.d.Engine().Residue().None() })
	}
}

// A snapshot with a hold has been passed on: nobody is told that the hold was released.
func TestAnUnlockAfterTheSnapshotIsRefused(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{})
	acquire(t, c, client.AcquireArgs{Key: "k", TTL: time.Minute})
	var answered <-chan error
	if err := h.d.Park(func([]int) error {
		answered = h.unlocking()
		time.Sleep(100 * time.Millisecond) // so that it would be answered, if it did not wait
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-h.done; !errors.Is(err, daemon.ErrTakenOver) {
		t.Errorf("Serve returned %v", err)
	}
	if err := <-answered; !errors.Is(err, daemon.ErrTakenOver) {
		t.Errorf("the unlock returned %v", err)
	}
	if n := h.d.Engine().Held(); n != 1 {
		t.Errorf("%d holds", n)
	}
	h.stop()
	h.d.EndTakenOver()
	h.done <- nil
}

// heldLog is an audit whose reader reads nothing until on is closed.
type heldLog struct {
	auditLog
	once  sync.Once
	begun chan struct{} // closed when something is written
	on    chan struct{}
}

func (l *heldLog) Write(b []byte) (int, error) {
	l.once.Do(func() { close(l.begun) })
	<-l.on
	return l.auditLog.Write(b)
}

// The reader of the log is slow when another process takes over. What has happened before is
// written all the same.
func TestTheAuditIsWholeAfterATakeover(t *testing.T) {
	seen := &heldLog{begun: make(chan struct{}), on: make(chan struct{})}
	spans := make(chan string, 2)
	h := start(t, nil, func(c *daemon.Config) {
		c.Audit, c.Logging.Audit = seen, true
		c.Spans = func(s audit.Span) { spans <- s.Key }
	})
	c := h.dial(client.Options{Name: "one"})
	<-seen.begun
	acquire(t, c, client.AcquireArgs{Key: "k", TTL: time.Minute, Traceparent: here})
	if err := h.d.Park(func([]int) error { return nil }); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		close(seen.on)
	}()
	if err := <-h.done; !errors.Is(err, daemon.ErrTakenOver) {
		t.Errorf("Serve returned %v", err)
	}
	var events []any
	for _, m := range seen.all(t) {
		events = append(events, m["event"])
	}
	if want := []any{"session_begin", "acquired"}; !slices.Equal(events, want) {
		t.Errorf("the audit has %q, want %q", events, want)
	}
	if len(spans) != 1 {
		t.Errorf("%d spans", len(spans))
	}
	h.stop()
	h.d.EndTakenOver()
	h.done <- nil
}

// Serve does not wait for a log that nobody reads after a takeover.
func TestATakeoverDoesNotWaitForALogThatNobodyReads(t *testing.T) {
	t.Parallel()
	seen := &heldLog{begun: make(chan struct{}), on: make(chan struct{})}
	h := start(t, nil, func(c *daemon.Config) { c.Audit, c.Logging.Audit = seen, true })
	h.dial(client.Options{Name: "one"})
	<-seen.begun
	if err := h.d.Park(func([]int) error { return nil }); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-h.done:
		if !errors.Is(err, daemon.ErrTakenOver) {
			t.Errorf("Serve returned %v", err)
		}
	case <-time.After(bound):
		t.Error("it waits")
	}
	close(seen.on)
	h.stop()
	h.d.EndTakenOver()
	h.done <- nil
}
