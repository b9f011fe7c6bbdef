package client

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is how long a test waits for something that must happen.
const bound = 30 * time.Second

// peer is the other end of a connection. The test decides what it sends.
type peer struct {
	t    testing.TB
	conn *net.UnixConn
	r    *bufio.Reader
}

// connect returns a client that has said hello to a peer, whose clock differs by skew milliseconds.
func connect(t testing.TB, opts Options, skew int64) (*Client, *peer) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan *peer)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			close(got)
			return
		}
		p := &peer{t, conn.(*net.UnixConn), bufio.NewReaderSize(conn, 64<<10)}
		q := p.next()
		if q.Op != protocol.OpHello || string(q.Name) != opts.Name || string(q.Label) != opts.Label {
			t.Errorf("first request %+v", q)
		}
		p.send(protocol.AppendWelcome(nil, q.ID, &protocol.Welcome{
			Version: 1, Session: 7, Now: uint64(now()/1e6 + skew), MaxFrame: protocol.DefaultMaxFrame,
			Daemon: "test",
		}))
		got <- p
	}()
	c, err := Dial(t.Context(), path, opts)
	if err != nil {
		t.Fatal(err)
	}
	p := <-got
	t.Cleanup(func() {
		c.Close()
		p.conn.Close()
	})
	return c, p
}

// next reads one request. It may be called on any goroutine.
func (p *peer) next() *protocol.Request {
	q, err := p.read()
	if err != nil {
		p.t.Errorf("peer: %v", err)
		return &protocol.Request{}
	}
	return q
}

func (p *peer) read() (*protocol.Request, error) {
	p.conn.SetReadDeadline(time.Now().Add(bound))
	var h [4]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(h[:]))
	if _, err := io.ReadFull(p.r, b); err != nil {
		return nil, err
	}
	q := new(protocol.Request)
	return q, protocol.DecodeRequest(b, q)
}

func (p *peer) send(b []byte) {
	if _, err := p.conn.Write(b); err != nil && !errors.Is(err, net.ErrClosed) {
		p.t.Errorf("peer: %v", err)
	}
}

// serve answers requests on its own goroutine until the connection ends.
func (p *peer) serve(answer func(b []byte, q *protocol.Request) []byte) {
	go func() {
		var q protocol.Request
		var out []byte
		buf, have := make([]byte, 64<<10), 0
		for {
			n, err := p.conn.Read(buf[have:])
			if err != nil {
				return
			}
			have += n
			rest := buf[:have]
			for {
				var payload []byte
				var ok bool
				if payload, rest, ok, err = protocol.Cut(rest, protocol.DefaultMaxFrame); !ok || err != nil {
					break
				}
				if err := protocol.DecodeRequest(payload, &q); err != nil {
					p.t.Errorf("peer: %v", err)
				}
				out = answer(out, &q)
			}
			have = copy(buf, rest)
			if _, err := p.conn.Write(out); err != nil {
				return
			}
			out = out[:0]
		}
	}()
}

// result waits for the result of an asynchronous call of the test.
func result[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(bound):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func grantUntil(d time.Duration, fence uint64) *protocol.Grant {
	return &protocol.Grant{Fence: fence, Left: uint64(d.Milliseconds()),
		Deadline: uint64((now() + int64(d)) / 1e6), Count: 1}
}
