package daemon_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// raw is a connection without a client behind it.
type raw struct {
	t testing.TB
	*net.UnixConn
	buf []byte
}

func (h *host) raw() *raw {
	h.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: h.socket, Net: "unix"})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(bound)); err != nil {
		h.t.Fatal(err)
	}
	return &raw{t: h.t, UnixConn: c}
}

func (r *raw) send(q *protocol.Request) { r.bytes(protocol.AppendRequest(nil, q)) }

func (r *raw) bytes(b []byte) {
	r.t.Helper()
	if _, err := r.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) hello() *raw {
	r.t.Helper()
	r.send(&protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1, MaxVersion: 1,
		Name: []byte("raw")})
	if m := r.next(); m.ID != 1 || m.Code != protocol.OK {
		r.t.Fatalf("hello was answered with %v", m.Code)
	}
	return r
}

// next reads one message.
func (r *raw) next() protocol.Message {
	r.t.Helper()
	for {
		p, rest, ok, err := protocol.Cut(r.buf, 1<<20)
		if err != nil {
			r.t.Fatal(err)
		}
		if ok {
			m, err := protocol.DecodeMessage(bytes.Clone(p))
			if err != nil {
				r.t.Fatal(err)
			}
			r.buf = append([]byte(nil), rest...)
			return m
		}
		var b [4096]byte
		n, err := r.Read(b[:])
		if err != nil {
			r.t.Fatalf("no message: %v", err)
		}
		r.buf = append(r.buf, b[:n]...)
	}
}

// fatal expects the session's last frame, and then its end.
func (r *raw) fatal(want protocol.Code) {
	r.t.Helper()
	m := r.next()
	code, msg, err := m.Fatal()
	if m.ID != 0 || m.Event != protocol.EventFatal || code != want || err != nil || msg == "" {
		r.t.Fatalf("%+v, code %v %q, want a fatal %v", m, code, msg, want)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		r.t.Fatalf("after a fatal frame: %d bytes, %v", n, err)
	}
}

func frame(payload ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

func TestFatalInputEndsTheSessionAndNoOther(t *testing.T) {
	h := start(t, nil, nil)
	other := h.dial(client.Options{})
	g := acquire(t, other, client.AcquireArgs{Key: "mine"})
	cases := map[string]struct {
		greeted bool
		in      []byte
		want    protocol.Code
	}{
		"garbage":                      {true, []byte("GET / HTTP/1.1\r\n\r\n"), protocol.BadFrame},
		"an oversized frame":           {true, []byte{0xff, 0xff, 0xff, 0xff}, protocol.BadFrame},
		"an empty frame":               {true, []byte{0, 0, 0, 0}, protocol.BadFrame},
		"four billion entries claimed": {true, frame(0xdd, 0xff, 0xff, 0xff, 0xff), protocol.BadFrame},
		"not an array":                 {true, frame(0xa1, 'x'), protocol.BadFrame},
		"an id of 0":                   {true, frame(0x92, 10, 0), protocol.BadFrame},
		"bytes behind the array":       {true, frame(0x92, 10, 1, 1), protocol.BadFrame},
		"a second hello":               {true, frame(0x94, 1, 2, 1, 1), protocol.BadFrame},
		"no hello":                     {false, frame(0x92, 10, 1), protocol.BadFrame},
		"another version":              {false, frame(0x94, 1, 1, 7, 9), protocol.BadVersion},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := h.raw()
			r.t = t
			if c.greeted {
				r.hello()
				r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte(name)})
				if m := r.next(); m.Code != protocol.OK {
					t.Fatal(m.Code)
				}
			}
			r.bytes(c.in)
			r.fatal(c.want)
			if c.greeted {
				// Its keys stay closed until it closes its end.
				if _, err := other.Acquire(t.Context(), client.AcquireArgs{Key: name}); !errors.Is(err,
					client.ErrBusy) {
					t.Fatalf("the key of a session that we ended was open at once: %v", err)
				}
				_ = r.Close()
				og := acquire(t, other, client.AcquireArgs{Key: name, Wait: bound})
				release(t, other, name, 0, og.Fence)
			}
		})
	}
	release(t, other, "mine", 0, g.Fence)
}

func TestFaultsOfARequestAreAnsweredAndTheSessionGoesOn(t *testing.T) {
	h := start(t, nil, nil)
	r := h.raw().hello()
	id := uint64(1)
	long := strings.Repeat("x", 513)
	cases := []struct {
		name string
		q    protocol.Request
		want protocol.Code
	}{
		{"unknown operation", protocol.Request{Op: 99}, protocol.Unsupported},
		{"empty key", protocol.Request{Op: protocol.OpAcquire}, protocol.Invalid},
		{"long key", protocol.Request{Op: protocol.OpAcquire, Key: []byte(long)}, protocol.Invalid},
		{"key that is not UTF-8", protocol.Request{Op: protocol.OpAcquire, Key: []byte{0xff, 0xfe}},
			protocol.Invalid},
		{"key with a control character", protocol.Request{Op: protocol.OpAcquire, Key: []byte("a\nb")},
			protocol.Invalid},
		{"negative wait", protocol.Request{Op: protocol.OpAcquire, Key: []byte("k"), Wait: -2},
			protocol.Invalid},
		{"mode that is none", protocol.Request{Op: protocol.OpAcquire, Key: []byte("k"), Mode: 7},
			protocol.Invalid},
		{"ttl of a week", protocol.Request{Op: protocol.OpAcquire, Key: []byte("k"), TTL: 7 * 86400000},
			protocol.Invalid},
		{"flags of a later version", protocol.Request{Op: protocol.OpAcquire, Key: []byte("k"),
			Flags: 1 << 20}, protocol.Invalid},
		{"release of nothing", protocol.Request{Op: protocol.OpRelease, Key: []byte("k"), Fence: 1},
			protocol.NotHeld},
		{"renew of nothing", protocol.Request{Op: protocol.OpRenew, Key: []byte("k"), Fence: 1},
			protocol.NotHeld},
		{"downgrade of nothing", protocol.Request{Op: protocol.OpDowngrade, Key: []byte("k"), Fence: 1},
			protocol.NotHeld},
		{"no keys", protocol.Request{Op: protocol.OpAcquireMany}, protocol.Invalid},
		{"a key twice", protocol.Request{Op: protocol.OpAcquireMany,
			Keys: [][]byte{[]byte("k"), []byte("k")}}, protocol.Invalid},
		{"a list's wrong place", protocol.Request{Op: protocol.OpList, After: []byte("nonsense"),
			Limit: 1}, protocol.Invalid},
		{"a list of too many", protocol.Request{Op: protocol.OpList, Limit: 100000}, protocol.Invalid},
	}
	for _, c := range cases {
		id++
		c.q.ID = id
		r.send(&c.q)
		m := r.next()
		if m.ID != id || m.Code != c.want {
			t.Errorf("%s: id %d, %v, want %v", c.name, m.ID, m.Code, c.want)
		}
		if msg, _, err := m.Error(); msg == "" || err != nil {
			t.Errorf("%s: no text (%v)", c.name, err)
		}
	}
	// A cancel of nothing is no fault.
	r.send(&protocol.Request{Op: protocol.OpCancel, ID: 100, Target: 99, Key: []byte("k")})
	if m := r.next(); m.Code != protocol.OK {
		t.Error(m.Code)
	}
	// Wrong types in known places, and unknown fields behind.
	r.bytes(frame(0x94, 2, 101, 0x80, 0))
	if m := r.next(); m.ID != 101 || m.Code != protocol.Invalid {
		t.Error(m.ID, m.Code)
	}
	r.bytes(frame(0x94, 10, 102, 0xc0, 0x81, 1, 2))
	if m := r.next(); m.ID != 102 || m.Code != protocol.OK {
		t.Error(m.ID, m.Code)
	}
}

func TestHalfFramesAndByteByByteInputAreWaitedFor(t *testing.T) {
	h := start(t, nil, nil)
	r := h.raw().hello()
	for _, b := range protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpPing, ID: 7}) {
		r.bytes([]byte{b})
	}
	if m := r.next(); m.ID != 7 {
		t.Fatal(m.ID)
	}
	r.bytes([]byte{0, 0, 0, 9, 0x92}) // and no more: the client goes away in the middle of it
}

func TestAClientThatNeverReadsIsCutOffAndHarmsNobody(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) { c.Limits.OutBuffer = 64 << 10 })
	other := h.dial(client.Options{})
	r := h.raw().hello()
	r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte("k")})
	ping := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpPing, ID: 3})
	pings := bytes.Repeat(ping, 1000)
	for range 1 << 20 / len(pings) * 64 {
		if _, err := r.Write(pings); err != nil {
			break
		}
		if _, err := other.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// What was in the socket's buffer can still be read; then it ends.
	n, err := io.Copy(io.Discard, r)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Fatal(err)
	}
	t.Logf("%d bytes came before the end", n)
	_ = r.Close()
	acquire(t, other, client.AcquireArgs{Key: "k", Wait: bound})
}

func TestPipelinedRequestsAreAllAnswered(t *testing.T) {
	h := start(t, nil, nil)
	r := h.raw().hello()
	const n = 5000
	done := make(chan error, 1)
	go func() {
		var b []byte
		for i := range n {
			b = protocol.AppendRequest(b, &protocol.Request{Op: protocol.OpAcquire, ID: uint64(i + 2),
				Key: fmt.Appendf(nil, "k%d", i)})
		}
		_, err := r.Write(b)
		done <- err
	}()
	seen := map[uint64]bool{}
	for len(seen) < n {
		m := r.next()
		if m.ID == 0 {
			continue // a keepalive
		}
		if m.Code != protocol.OK || seen[m.ID] {
			t.Fatal(m.ID, m.Code)
		}
		seen[m.ID] = true
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestConnectionsThatNeverSayHelloAreClosed(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) { c.Limits.MaxSilent = 50 * time.Millisecond })
	before := descriptors(t)
	conns := make([]*raw, 1000)
	for i := range conns {
		conns[i] = h.raw()
	}
	for _, r := range conns {
		r.fatal(protocol.BadFrame)
		_ = r.Close()
	}
	eventually(t, "descriptors are given back", func() bool { return descriptors(t) <= before })
}

func descriptors(t testing.TB) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc here")
	}
	return len(d)
}

func TestTooManyConnectionsAreRefusedWithAReason(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) { c.Limits.MaxConns = 3 })
	var held []*raw
	for range 3 {
		held = append(held, h.raw().hello())
	}
	h.raw().fatal(protocol.Limit)
	_ = held[0].Close()
	eventually(t, "a place comes free", func() bool {
		c, err := client.Dial(t.Context(), h.socket, client.Options{})
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
}

func TestLimitsOfASessionAreNamed(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) { c.Limits.MaxHolds, c.Limits.MaxWaiters = 2, 1 })
	c, d := h.dial(client.Options{}), h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "a"})
	acquire(t, c, client.AcquireArgs{Key: "b"})
	if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: "c"}); !errors.Is(err,
		client.ErrLimit) {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := d.Acquire(t.Context(), client.AcquireArgs{Key: "a", Wait: client.Forever})
		waits <- err
	}()
	eventually(t, "it waits", func() bool {
		s, err := c.Inspect(t.Context(), "a")
		return err == nil && s.Waiters == 1
	})
	if _, err := d.Acquire(t.Context(), client.AcquireArgs{Key: "b",
		Wait: time.Second}); !errors.Is(err, client.ErrLimit) {
		t.Fatal(err)
	}
	release(t, c, "a", 0, g.Fence)
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
}

func TestAClientGoneBetweenRequestAndReplyLeavesNothing(t *testing.T) {
	h := start(t, nil, nil)
	other := h.dial(client.Options{})
	for i := range 200 {
		r := h.raw().hello()
		r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte("k"), Wait: -1})
		if i%2 == 0 {
			r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 3, Key: []byte("l"), Wait: -1})
		}
		_ = r.Close()
	}
	for _, k := range []string{"k", "l"} {
		g := acquire(t, other, client.AcquireArgs{Key: k, Wait: bound})
		release(t, other, k, 0, g.Fence)
	}
	eventually(t, "nothing is left", func() bool {
		rows, _, err := other.List(t.Context(), "", "", 0)
		return err == nil && len(rows) == 0
	})
}
