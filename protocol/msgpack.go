package protocol

import (
	"encoding/binary"
	"errors"
)

// Errors of the bounded decoder. They are fatal if the frame becomes unreadable, and answered if
// only a field is wrong.
var (
	errTruncated = errors.New("value is cut short")
	errType      = errors.New("value of another type")
	errRange     = errors.New("number out of range")
	errDepth     = errors.New("nested too deeply")
	errTrailing  = errors.New("bytes behind the array")
)

// maxDepth bounds the nesting of skipped values.
const maxDepth = 8

// reader walks over one payload. It does not allocate; the strings that it returns point into the
// payload.
type reader struct{ b []byte }

func (r *reader) byte() (byte, error) {
	if len(r.b) == 0 {
		return 0, errTruncated
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c, nil
}

func (r *reader) take(n uint64) ([]byte, error) {
	if uint64(len(r.b)) < n {
		return nil, errTruncated
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p, nil
}

func (r *reader) beUint(width int) (uint64, error) {
	p, err := r.take(uint64(width))
	if err != nil {
		return 0, err
	}
	switch width {
	case 1:
		return uint64(p[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(p)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(p)), nil
	}
	return binary.BigEndian.Uint64(p), nil
}

// array reads an array's header. It checks the count against the number of bytes left, since each
// entry takes at least one.
func (r *reader) array() (int, error) {
	c, err := r.byte()
	if err != nil {
		return 0, err
	}
	var n uint64
	switch {
	case c&0xf0 == 0x90:
		n = uint64(c & 0x0f)
	case c == 0xdc:
		n, err = r.beUint(2)
	case c == 0xdd:
		n, err = r.beUint(4)
	default:
		return 0, errType
	}
	if err != nil {
		return 0, err
	}
	if n > uint64(len(r.b)) {
		return 0, errTruncated
	}
	return int(n), nil
}

// int reads any integer, of any width, signed or not.
func (r *reader) int() (v int64, err error) {
	c, err := r.byte()
	if err != nil {
		return 0, err
	}
	var u uint64
	switch {
	case c < 0x80:
		return int64(c), nil
	case c >= 0xe0:
		return int64(int8(c)), nil
	case c >= 0xcc && c <= 0xcf:
		if u, err = r.beUint(1 << (c - 0xcc)); err != nil {
			return 0, err
		}
		if u > 1<<63-1 {
			return 0, errRange
		}
		return int64(u), nil
	case c == 0xd0:
		u, err = r.beUint(1)
		return int64(int8(u)), err
	case c == 0xd1:
		u, err = r.beUint(2)
		return int64(int16(u)), err
	case c == 0xd2:
		u, err = r.beUint(4)
		return int64(int32(u)), err
	case c == 0xd3:
		u, err = r.beUint(8)
		return int64(u), err
	}
	return 0, errType
}

// uint reads a non-negative integer of at most 63 bits.
func (r *reader) uint() (uint64, error) {
	v, err := r.int()
	if err != nil {
		return 0, err
	}
	if v < 0 {
		return 0, errRange
	}
	return uint64(v), nil
}

// str reads a string. The bytes point into the payload, and are not checked for UTF-8.
func (r *reader) str() ([]byte, error) {
	c, err := r.byte()
	if err != nil {
		return nil, err
	}
	var n uint64
	switch {
	case c&0xe0 == 0xa0:
		n = uint64(c & 0x1f)
	case c >= 0xd9 && c <= 0xdb:
		n, err = r.beUint(1 << (c - 0xd9))
	default:
		return nil, errType
	}
	if err != nil {
		return nil, err
	}
	return r.take(n)
}

// skip skips one value of any type.
func (r *reader) skip(depth int) error {
	if depth > maxDepth {
		return errDepth
	}
	c, err := r.byte()
	if err != nil {
		return err
	}
	n, sub, err := r.extent(c)
	if err != nil {
		return err
	}
	if _, err = r.take(n); err != nil {
		return err
	}
	if sub > uint64(len(r.b)) { // an entry takes at least one byte
		return errTruncated
	}
	for range sub {
		if err = r.skip(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

// extent returns the number of bytes and of nested values after the first byte c of a value.
func (r *reader) extent(c byte) (n, sub uint64, err error) {
	switch {
	case c < 0x80 || c >= 0xe0: // fixint
	case c < 0x90: // fixmap
		sub = 2 * uint64(c&0x0f)
	case c < 0xa0: // fixarray
		sub = uint64(c & 0x0f)
	case c < 0xc0: // fixstr
		n = uint64(c & 0x1f)
	case c == 0xc1: // an unused code
		err = errType
	case c <= 0xc3: // nil, false, true
	case c >= 0xdc: // array16, array32, map16, map32
		sub, err = r.beUint(2 << (c & 1))
		if c >= 0xde {
			sub *= 2
		}
	default:
		n, err = r.size(c)
	}
	return n, sub, err
}

// size returns the number of bytes after the first byte c of a value from 0xc4 to 0xdb.
func (r *reader) size(c byte) (n uint64, err error) {
	switch {
	case c <= 0xc6: // bin
		return r.beUint(1 << (c - 0xc4))
	case c <= 0xc9: // ext
		n, err = r.beUint(1 << (c - 0xc7))
		return n + 1, err
	case c <= 0xcb: // float32, float64
		return 4 << (c - 0xca), nil
	case c <= 0xcf: // uint
		return 1 << (c - 0xcc), nil
	case c <= 0xd3: // int
		return 1 << (c - 0xd0), nil
	case c <= 0xd8: // fixext
		return 1 + 1<<(c-0xd4), nil
	}
	return r.beUint(1 << (c - 0xd9)) // str
}

func appendArray(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n <= 0xffff:
		return append(b, 0xdc, byte(n>>8), byte(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

func appendUint(b []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(b, byte(v))
	case v <= 0xff:
		return append(b, 0xcc, byte(v))
	case v <= 0xffff:
		return append(b, 0xcd, byte(v>>8), byte(v))
	case v <= 0xffffffff:
		return append(b, 0xce, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

func appendInt(b []byte, v int64) []byte {
	if v >= 0 {
		return appendUint(b, uint64(v))
	}
	switch {
	case v >= -32:
		return append(b, byte(v))
	case v >= -1<<7:
		return append(b, 0xd0, byte(v))
	case v >= -1<<15:
		return append(b, 0xd1, byte(v>>8), byte(v))
	case v >= -1<<31:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
}

func appendStr[S ~string | ~[]byte](b []byte, s S) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n <= 0xff:
		b = append(b, 0xd9, byte(n))
	case n <= 0xffff:
		b = append(b, 0xda, byte(n>>8), byte(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
}
