package faulty

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"slices"
)

// errBad is the error of a malformed frame, or of a message with wrong or missing fields.
var errBad = errors.New("bad_frame")

// skipped is a value of a type that no field of this version has.
type skipped struct{}

// decoder reads the values of one payload as uint64, int64, string, []any or skipped.
type decoder struct {
	b     []byte
	fault fault
}

func decode(payload []byte, f fault) (m []any, err error) {
	d := decoder{payload, f}
	v, err := d.value(0)
	if err != nil {
		return nil, err
	}
	m, ok := v.([]any)
	if !ok || len(m) < 2 || len(d.b) > 0 && !f.is("reads-past-the-array") {
		return nil, errBad
	}
	return m, nil
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) uint(width int) (uint64, error) {
	p := d.take(uint64(width))
	if p == nil {
		return 0, errBad
	}
	return binary.BigEndian.Uint64(append(make([]byte, 8-width), p...)), nil
}

func (d *decoder) value(level int) (any, error) {
	if level > 8 && !d.fault.is("nests-deeper") {
		return nil, errBad
	}
	head, err := d.uint(1)
	if err != nil {
		return nil, err
	}
	switch c := byte(head); {
	case c < 0x80:
		return head, nil
	case c >= 0xe0:
		return int64(int8(c)), nil
	case c < 0x90:
		return d.skip(2*uint64(c&15), level)
	case c < 0xa0:
		return d.array(uint64(c&15), level)
	case c < 0xc0:
		return d.text(uint64(c&31), 0)
	case c == 0xc1:
		if d.fault.is("takes-0xc1-for-nil") {
			return skipped{}, nil
		}
		return nil, errBad
	case c >= 0xcc && c <= 0xd3:
		return d.number(c)
	case c >= 0xd9 && c <= 0xdb:
		n, err := d.uint(1 << (c - 0xd9))
		if err != nil {
			return nil, err
		}
		return d.text(n, 1<<(c-0xd9))
	case c == 0xdc || c == 0xdd:
		n, err := d.uint(2 << (c - 0xdc))
		if err != nil {
			return nil, err
		}
		return d.array(n, level)
	case c == 0xde || c == 0xdf:
		n, err := d.uint(2 << (c - 0xde))
		if err != nil {
			return nil, err
		}
		return d.skip(2*n, level)
	default:
		return d.other(c)
	}
}

func (d *decoder) number(c byte) (any, error) {
	width := 1 << ((c - 0xcc) % 4)
	v, err := d.uint(width)
	if err != nil {
		return nil, err
	}
	if d.fault.is("reads-shortest-numbers") && (v < 0x80 || c >= 0xd0 || width > 1 &&
		v < 1<<(4*width)) {
		return nil, errBad
	}
	if c < 0xd0 {
		return v, nil
	}
	s := int64(v<<(64-8*width)) >> (64 - 8*width)
	if s >= 0 {
		return uint64(s), nil
	}
	return s, nil
}

func (d *decoder) text(n uint64, width int) (any, error) {
	if d.fault.is("reads-shortest-texts") && (width == 1 && n < 32 || width == 2 && n < 256 ||
		width == 4 && n < 65536) {
		return nil, errBad
	}
	p := d.take(n)
	if p == nil {
		return nil, errBad
	}
	return string(p), nil
}

func (d *decoder) array(n uint64, level int) (any, error) {
	if d.fault.is("trusts-lengths") && n > 1<<24 {
		os.Exit(2) // out of memory
	}
	if n > uint64(len(d.b)) {
		return nil, errBad
	}
	vs := make([]any, n)
	for i := range vs {
		v, err := d.value(level + 1)
		if err != nil {
			return nil, err
		}
		vs[i] = v
	}
	return vs, nil
}

// skip skips the n keys and values of a map.
func (d *decoder) skip(n uint64, level int) (any, error) {
	if d.fault.is("knows-its-types-only") {
		return nil, errBad
	}
	if n > uint64(len(d.b)) {
		return nil, errBad
	}
	for range n {
		if _, err := d.value(level + 1); err != nil {
			return nil, err
		}
	}
	return skipped{}, nil
}

// other skips nil, booleans, floats, bin and ext.
func (d *decoder) other(c byte) (any, error) {
	if d.fault.is("knows-its-types-only") {
		return nil, errBad
	}
	var n uint64
	var err error
	switch {
	case c < 0xc4: // nil, false, true
	case c < 0xc7: // bin
		n, err = d.uint(1 << (c - 0xc4))
	case c < 0xca: // ext
		n, err = d.uint(1 << (c - 0xc7))
		n++
	case c < 0xcc: // floats
		n = 4 << (c - 0xca)
	default: // fixext
		n = 1 + 1<<(c-0xd4)
	}
	if err != nil || d.take(n) == nil && n > 0 {
		return nil, errBad
	}
	return skipped{}, nil
}

// fields reads the fields of a message one by one. err is set if a field is missing or has another
// type.
type fields struct {
	vs    []any
	fault fault
	err   error
}

func (f *fields) next() any {
	if len(f.vs) == 0 {
		if f.fault.is("fills-in-missing-fields") {
			return uint64(0)
		}
		f.err = errBad
		return nil
	}
	v := f.vs[0]
	f.vs = f.vs[1:]
	return v
}

func (f *fields) num() uint64 {
	switch v := f.next().(type) {
	case uint64:
		if v <= math.MaxInt64 || f.fault.is("reads-64-bits") {
			return v
		}
	case int64:
		if f.fault.is("reads-negatives") {
			return uint64(-v)
		}
	default:
		if f.fault.is("reads-any-type") {
			return 0
		}
	}
	f.err = errBad
	return 0
}

func (f *fields) text() string {
	s, ok := f.next().(string)
	if !ok && !f.fault.is("reads-any-type") && !f.fault.is("fills-in-missing-fields") {
		f.err = errBad
	}
	return s
}

func (f *fields) array() []any {
	vs, ok := f.next().([]any)
	if !ok {
		f.err = errBad
	}
	return vs
}

// done returns the error of the fields read so far. The remaining fields belong to a later version.
func (f *fields) done() error {
	if f.err == nil && len(f.vs) > 0 && f.fault.is("refuses-appended-fields") {
		return errBad
	}
	return f.err
}

// encode appends values in MessagePack. It knows the types that requests consist of.
func encode(b []byte, vs ...any) []byte {
	for _, v := range vs {
		switch v := v.(type) {
		case []any:
			b = head(b, 0x90, 16, 0xdc, uint64(len(v)))
			b = encode(b, v...)
		case string:
			b = head(b, 0xa0, 32, 0xd9, uint64(len(v)))
			b = append(b, v...)
		case int64:
			if v < 0 {
				b = binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
			} else {
				b = head(b, 0, 128, 0xcc, uint64(v))
			}
		case uint64:
			b = head(b, 0, 128, 0xcc, v)
		case int:
			b = encode(b, int64(v))
		}
	}
	return b
}

// head appends a number or a length n. If n is less than below, it is encoded within the byte fix
// of the type. Otherwise it follows the byte of a wider type. The first of these types is wide; its
// n has one byte, or two for an array.
func head(b []byte, fix byte, below uint64, wide byte, n uint64) []byte {
	if n < below {
		return append(b, fix|byte(n))
	}
	width := 1
	if wide == 0xdc {
		width = 2
	}
	for t := wide; ; t, width = t+1, width*2 {
		if width == 8 || n < 1<<(8*width) {
			return append(append(b, t), binary.BigEndian.AppendUint64(nil, n)[8-width:]...)
		}
	}
}

// frame returns the payload with its header.
func frame(payload []byte) []byte {
	return slices.Concat(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload)
}
