package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file traces the frames on the socket, for the exchange that is shown when a scenario fails.
// C marks frames from the client, and D frames from the daemon.

// tracer notes the frames of one direction of a connection, which may arrive in pieces.
type tracer struct {
	note func(line string)
	from byte
	have []byte
}

func (r *tracer) saw(b []byte) {
	for r.have = append(r.have, b...); len(r.have) >= protocol.HeaderLen; {
		n := int(binary.BigEndian.Uint32(r.have))
		if n == 0 || n > 1<<20 {
			r.note(fmt.Sprintf("%c a header of %d bytes", r.from, n))
			r.have = r.have[protocol.HeaderLen:]
			continue
		}
		if len(r.have) < protocol.HeaderLen+n {
			return
		}
		r.note(fmt.Sprintf("%c %s", r.from, frameText(r.from,
			r.have[protocol.HeaderLen:protocol.HeaderLen+n])))
		r.have = r.have[protocol.HeaderLen+n:]
	}
}

var opNames = map[uint64]string{1: "hello", 2: "acquire", 3: "release", 4: "renew", 5: "downgrade",
	6: "cancel", 7: "inspect",
	8: "acquire-many", 9: "release-many", 10: "ping", 11: "list", 12: "stored", 13: "acquire-any",
	14: "force-unlock"}

var eventNames = map[uint64]string{64: "lost", 65: "keepalive", 66: "going-away", 67: "fatal",
	68: "release-failed"}

// frameText returns a payload as text: its name, and its array in a form like JSON.
func frameText(from byte, payload []byte) string {
	text, rest, err := valueText(payload, 0)
	if err != nil || len(rest) > 0 || text[0] != '[' {
		return fmt.Sprintf("not a message: % x", payload)
	}
	var head, id uint64
	_, _ = fmt.Sscanf(text, "[%d, %d", &head, &id)
	switch {
	case from == 'C':
		return strings.TrimSpace(opNames[head] + " " + text)
	case id == 0:
		return strings.TrimSpace(eventNames[head] + " " + text)
	case head > math.MaxUint8:
		return text
	}
	return protocol.Code(head).String() + " " + text
}

var errText = errors.New("no MessagePack")

// valueText returns the first value of b as text, and the bytes after it.
func valueText(b []byte, depth int) (string, []byte, error) {
	if len(b) == 0 || depth > 200 {
		return "", nil, errText
	}
	r := textReader{rest: b[1:]}
	text, kind, size := r.head(b[0])
	if r.bad || size > uint64(len(r.rest)) {
		return "", nil, errText
	}
	switch kind {
	case 's':
		return strconv.Quote(string(r.rest[:size])), r.rest[size:], nil
	case 'b':
		return fmt.Sprintf("<%x>", r.rest[:size]), r.rest[size:], nil
	case 'a':
		return listText("[]", size, r.rest, depth)
	case 'm':
		return listText("{}", 2*size, r.rest, depth)
	}
	return text, r.rest, nil
}

// listText returns size values of b as text between marks, and the bytes after them.
func listText(marks string, size uint64, b []byte, depth int) (string, []byte, error) {
	var parts []string
	for range size {
		part, after, err := valueText(b, depth+1)
		if err != nil {
			return "", nil, err
		}
		parts, b = append(parts, part), after
	}
	return marks[:1] + strings.Join(parts, ", ") + marks[1:], b, nil
}

// textReader reads the bytes after the first byte of a value.
type textReader struct {
	rest []byte
	bad  bool
}

// number reads n bytes, big-endian.
func (r *textReader) number(n int) (v uint64) {
	if n > len(r.rest) {
		r.bad = true
		return 0
	}
	for _, x := range r.rest[:n] {
		v = v<<8 | uint64(x)
	}
	r.rest = r.rest[n:]
	return v
}

// head returns what the first byte c of a value means. If the value is a number, nil or a boolean,
// that is its text. Otherwise it is the kind and the size: of text ('s'), bytes ('b'), an array
// ('a') or a map ('m').
func (r *textReader) head(c byte) (text string, kind byte, size uint64) {
	switch {
	case c < 0x80:
		return strconv.Itoa(int(c)), 0, 0
	case c < 0x90:
		return "", 'm', uint64(c & 15)
	case c < 0xa0:
		return "", 'a', uint64(c & 15)
	case c < 0xc0:
		return "", 's', uint64(c & 31)
	case c >= 0xe0:
		return strconv.Itoa(int(int8(c))), 0, 0
	}
	return r.wideHead(c)
}

// wideHead is head for a first byte from 0xc0 to 0xdf.
func (r *textReader) wideHead(c byte) (text string, kind byte, size uint64) {
	switch {
	case c == 0xc1:
		r.bad = true
		return "", 0, 0
	case c < 0xc4:
		return map[byte]string{0xc0: "nil", 0xc2: "false", 0xc3: "true"}[c], 0, 0
	case c < 0xc7:
		return "", 'b', r.number(1 << (c - 0xc4))
	case c < 0xca:
		return "", 'b', r.number(1<<(c-0xc7)) + 1
	case c < 0xcc:
		return "", 'b', 4 << (c - 0xca)
	case c < 0xd0:
		return strconv.FormatUint(r.number(1<<(c-0xcc)), 10), 0, 0
	case c < 0xd4:
		width := 8 << (c - 0xd0)
		v := int64(r.number(width/8)<<(64-width)) >> (64 - width)
		return strconv.FormatInt(v, 10), 0, 0
	case c < 0xd9:
		return "", 'b', 1 + 1<<(c-0xd4)
	case c < 0xdc:
		return "", 's', r.number(1 << (c - 0xd9))
	case c < 0xde:
		return "", 'a', r.number(2 << (c - 0xdc))
	}
	return "", 'm', r.number(2 << (c - 0xde))
}

// relay forwards the bytes between the client and the real daemon, and notes the frames.
type relay struct {
	t      *T
	ln     *net.UnixListener
	to     string
	wg     sync.WaitGroup
	mu     sync.Mutex
	conns  []*net.UnixConn // guarded by mu
	closed bool            // guarded by mu
}

func (t *T) relay(to string) *relay {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.socket, Net: "unix"})
	t.must(err)
	r := &relay{t: t, ln: ln, to: to}
	r.wg.Go(func() {
		for {
			near, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			far, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: to, Net: "unix"})
			if err != nil || !r.keep(near, far) {
				_ = near.Close()
				continue
			}
			r.wg.Go(func() { r.pass(near, far, 'C') })
			r.wg.Go(func() { r.pass(far, near, 'D') })
		}
	})
	return r
}

func (r *relay) keep(near, far *net.UnixConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, near, far)
	if r.closed {
		_ = far.Close()
	}
	return !r.closed
}

// pass forwards one direction, whose sender is 'C' or 'D'. At the end of the stream it closes the
// writing side of the other connection. After an error it closes both connections.
func (r *relay) pass(from, to *net.UnixConn, sender byte) {
	tr := tracer{note: r.t.p.frame, from: sender}
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			tr.saw(buf[:n])
			if _, e := to.Write(buf[:n]); e != nil && err == nil {
				err = e
			}
		}
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite()
			return
		}
		if err != nil {
			_, _ = from.Close(), to.Close()
			return
		}
	}
}

// close ends the relay and all of its connections.
func (r *relay) close() {
	_ = r.ln.Close()
	r.mu.Lock()
	r.closed = true
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}
