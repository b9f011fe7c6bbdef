package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// HeaderLen is the length of a frame's header: a big-endian uint32 that counts the bytes of the
// payload after it.
const HeaderLen = 4

// DefaultMaxFrame is the largest payload, in bytes, unless another limit is configured.
const DefaultMaxFrame = 64 << 10

// ErrFrameTooLarge means that a header claims more than the limit. It is fatal.
var ErrFrameTooLarge = errors.New("frame too large")

// ErrEmptyFrame means that a header claims an empty payload. It is fatal.
var ErrEmptyFrame = errors.New("empty frame")

// Cut returns the first whole payload in b and the bytes after it. ok is false if b does not hold a
// whole frame yet. The payload points into b.
func Cut(b []byte, maxFrame int) (payload, rest []byte, ok bool, err error) {
	if len(b) < HeaderLen {
		return nil, b, false, nil
	}
	n := binary.BigEndian.Uint32(b)
	switch {
	case n == 0:
		return nil, b, false, ErrEmptyFrame
	case uint64(n) > uint64(maxFrame):
		if speaksHTTP(b) {
			return nil, b, false, fmt.Errorf("%w: the other end speaks HTTP (as the admin socket "+
				"does, not the one for locks)",
				ErrFrameTooLarge)
		}
		return nil, b, false, fmt.Errorf("%w: %d bytes, the limit is %d",
			ErrFrameTooLarge, n, maxFrame)
	case uint64(len(b)-HeaderLen) < uint64(n):
		return nil, b, false, nil
	}
	end := HeaderLen + int(n)
	return b[HeaderLen:end], b[end:], true, nil
}

// speaksHTTP reports whether b begins like an HTTP request or reply. That happens when one of the
// daemon's two sockets is used instead of the other.
func speaksHTTP(b []byte) bool {
	switch string(b[:HeaderLen]) {
	case "HTTP", "GET ", "POST", "HEAD":
		return true
	}
	return false
}

// openFrame leaves room for a header, which closeFrame writes.
func openFrame(b []byte) ([]byte, int) {
	return append(b, 0, 0, 0, 0), len(b)
}

func closeFrame(b []byte, at int) []byte {
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-HeaderLen))
	return b
}
