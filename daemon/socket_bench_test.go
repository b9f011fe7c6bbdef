package daemon_test

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

// speaker is a client that allocates nothing itself.
type speaker struct {
	t    testing.TB
	conn net.Conn
	out  []byte
	in   [256]byte
}

func (h *host) speaker() *speaker {
	c, err := net.Dial("unix", h.socket)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	s := &speaker{t: h.t, conn: c}
	s.say(&protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: protocol.MinVersion,
		MaxVersion: protocol.Version})
	s.heard(1, protocol.OK)
	return s
}

func (s *speaker) say(qs ...*protocol.Request) {
	s.out = s.out[:0]
	for _, q := range qs {
		s.out = protocol.AppendRequest(s.out, q)
	}
	if _, err := s.conn.Write(s.out); err != nil {
		s.t.Fatal(err)
	}
}

// heard waits for the reply to id, which has to be of that code.
func (s *speaker) heard(id uint64, c protocol.Code) protocol.Message {
	for {
		head := s.in[:protocol.HeaderLen]
		if _, err := io.ReadFull(s.conn, head); err != nil {
			s.t.Fatal(err)
		}
		body := s.in[:binary.BigEndian.Uint32(head)]
		if _, err := io.ReadFull(s.conn, body); err != nil {
			s.t.Fatal(err)
		}
		m, err := protocol.DecodeMessage(body)
		if err != nil || m.ID != 0 && (m.ID != id || m.Code != c) {
			s.t.Fatal(m.ID, m.Code, err)
		}
		if m.ID == id {
			return m
		}
	}
}

func (s *speaker) granted(id uint64) uint64 {
	m := s.heard(id, protocol.OK)
	g, err := m.Grant()
	if err != nil {
		s.t.Fatal(err)
	}
	return g.Fence
}

// TestNothingOnTheWayThroughASocketAllocates is the local path from the read of a frame
// to the write of its reply, with all that a daemon has around it.
func TestNothingOnTheWayThroughASocketAllocates(t *testing.T) {
	h := start(t, nil, nil)
	a, b := h.speaker(), h.speaker()
	key := []byte("order:42")
	try := &protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: key}
	wait := &protocol.Request{Op: protocol.OpAcquire, ID: 3, Key: key, Wait: protocol.WaitAlways}
	release := &protocol.Request{Op: protocol.OpRelease, ID: 4, Key: key}
	ping := &protocol.Request{Op: protocol.OpPing, ID: 5}
	a.say(try)
	release.Fence = a.granted(try.ID)
	for name, step := range map[string]func(){
		"re-entry": func() {
			a.say(try, release)
			a.granted(try.ID)
			a.heard(release.ID, protocol.OK)
		},
		"busy try": func() {
			b.say(try)
			b.heard(try.ID, protocol.Busy)
		},
		"handoff, there and back": func() {
			for _, s := range [...][2]*speaker{{a, b}, {b, a}} {
				s[1].say(wait, ping)
				s[1].heard(ping.ID, protocol.OK) // it is queued
				s[0].say(release)
				s[0].heard(release.ID, protocol.OK)
				release.Fence = s[1].granted(wait.ID)
			}
		},
	} {
		for range 100 { // buffers get the size that they keep
			step()
		}
		// Under the race detector pools forget at random.
		if n := testing.AllocsPerRun(1000, step); n != 0 && !raceDetector {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
