package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestEndOfConnectionEndsEveryCall(t *testing.T) {
	for name, last := range map[string][]byte{
		"end of file":     nil,
		"fatal":           protocol.AppendFatal(nil, protocol.BadFrame, "no"),
		"not an array":    {0, 0, 0, 1, 0xc0},
		"half a frame":    {0, 0, 0, 9, 0x93},
		"empty frame":     {0, 0, 0, 0},
		"oversized frame": {0xff, 0xff, 0xff, 0xff, 1},
		"a grant of text": {0, 0, 0, 5, 0x93, 0, 2, 0xa1, 'x'},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			c, p := connect(t, Options{OnEnd: func(err error) { ended <- err }}, 0)
			const n = 20
			errs := make(chan error, n)
			for i := range n {
				if i%2 == 0 {
					go func() {
						_, err := c.Acquire(t.Context(), AcquireArgs{Key: "k", Wait: Forever})
						errs <- err
					}()
				} else if _, err := c.Go(&protocol.Request{Op: protocol.OpAcquire, Key: []byte("k")},
					func(r *Reply) { errs <- r.Err }); err != nil {
					t.Fatal(err)
				}
			}
			for range n {
				p.next()
			}
			p.send(last)
			p.conn.Close()
			for range n {
				if err := result(t, errs); !errors.Is(err, ErrClosed) {
					t.Errorf("a call ended with %v", err)
				}
			}
			err := result(t, ended)
			if name == "fatal" && !errors.Is(err, ErrBadFrame) {
				t.Errorf("the daemon's reason is not in %v", err)
			}
			result(t, c.Done())
			if c.Err() == nil {
				t.Error("Err is nil after the end")
			}
		})
	}
}

func TestLastWordsAreHeardThoughAWriteFails(t *testing.T) {
	ended := make(chan error, 1)
	c, p := connect(t, Options{OnEnd: func(err error) { ended <- err }}, 0)
	p.conn.CloseRead()
	for c.Err() == nil { // a write fails at some point; the reason arrives after that
		if _, err := c.Go(&protocol.Request{Op: protocol.OpPing}, func(*Reply) {}); err != nil {
			break
		}
		c.mu.Lock()
		failed := c.wr.failed
		c.mu.Unlock()
		if failed {
			break
		}
	}
	p.send(protocol.AppendFatal(nil, protocol.TooSlow, "read!"))
	if err := result(t, ended); !errors.Is(err, ErrTooSlow) {
		t.Error(err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	const n = 50
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := c.Acquire(t.Context(), AcquireArgs{Key: "k", Wait: Forever})
			errs <- err
		}()
	}
	for range n {
		p.next()
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { c.Close() })
	}
	wg.Wait()
	for range n {
		if err := result(t, errs); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if _, err := p.read(); !errors.Is(err, io.EOF) {
		t.Errorf("the peer sees %v", err)
	}
}

func TestPeerThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	var sent, ended atomic.Int64
	key := bytes.Repeat([]byte("k"), 500)
	full := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.wr.writing && len(c.wr.out) > 1<<20
	}
	for !full() { // asynchronous senders do not block
		if _, err := c.Go(&protocol.Request{Op: protocol.OpInspect, Key: key},
			func(r *Reply) { ended.Add(1) }); err != nil {
			t.Fatal(err)
		}
		sent.Add(1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a caller's context: %v", err)
	}
	var last uint64
	p.serve(func(b []byte, q *protocol.Request) []byte {
		if q.ID != last+1 && last != 0 {
			t.Errorf("request %d follows %d", q.ID, last)
		}
		last = q.ID
		if q.Op == protocol.OpPing {
			return protocol.AppendPong(b, q.ID, 1)
		}
		return protocol.AppendInspected(b, q.ID, &protocol.State{})
	})
	if _, err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ended.Load() != sent.Load() {
		t.Errorf("%d of %d ended", ended.Load(), sent.Load())
	}
}

func TestCloseWhilePeerDoesNotRead(t *testing.T) {
	c, _ := connect(t, Options{}, 0)
	for range 5000 {
		if _, err := c.Go(&protocol.Request{Op: protocol.OpInspect, Key: bytes.Repeat([]byte("k"), 500)},
			func(*Reply) {}); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
}

func TestTooLargeARequestEndsOnlyItself(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	p.serve(func(b []byte, q *protocol.Request) []byte { return protocol.AppendPong(b, q.ID, 1) })
	keys := make([]string, protocol.MaxMany)
	for i := range keys {
		keys[i] = fmt.Sprintf("%0500d", i)
	}
	if _, err := c.AcquireMany(t.Context(), keys, AcquireArgs{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a frame above the limit: %v", err)
	}
	if _, err := c.Ping(t.Context()); err != nil {
		t.Errorf("and the connection: %v", err)
	}
}

func TestLargestReplyIsRead(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	done := make(chan int, 1)
	go func() {
		rows, _, err := c.List(t.Context(), "", "", 0)
		if err != nil {
			t.Error(err)
		}
		done <- len(rows)
	}()
	q := p.next()
	var rows []protocol.Row
	for len(protocol.AppendList(nil, q.ID, rows, "")) < protocol.DefaultMaxFrame-300 {
		rows = append(rows, protocol.Row{Key: string(bytes.Repeat([]byte("x"), 200))})
	}
	rows = append(rows, protocol.Row{})
	last := &rows[len(rows)-1].Key
	b := protocol.AppendList(nil, q.ID, rows, "")
	for len(b) < protocol.DefaultMaxFrame+protocol.HeaderLen {
		*last += "y"
		b = protocol.AppendList(b[:0], q.ID, rows, "")
	}
	if len(b) != protocol.DefaultMaxFrame+protocol.HeaderLen {
		t.Fatalf("the frame has %d bytes", len(b))
	}
	p.send(b)
	if n := result(t, done); n != len(rows) {
		t.Errorf("%d rows of %d", n, len(rows))
	}
}

func TestDialFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if _, err := Dial(t.Context(), path, Options{}); err == nil {
		t.Error("nobody is there")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, path, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a daemon that says nothing: %v", err)
	}
	l2path := filepath.Join(t.TempDir(), "s")
	l2, err := net.Listen("unix", l2path)
	if err != nil {
		t.Fatal(err)
	}
	defer l2.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		conn, err := l2.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Write(protocol.AppendFatal(nil, protocol.BadVersion, "too old"))
		io.Copy(io.Discard, conn)
	})
	if _, err := Dial(t.Context(), l2path, Options{}); !errors.Is(err, ErrBadVersion) {
		t.Errorf("refused: %v", err)
	}
}
