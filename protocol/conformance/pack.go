package conformance

import (
	"encoding/binary"
	"fmt"
	"math"
)

// raw is MessagePack that is written as it is.
type raw string

// list is an array.
type list []any

// pack writes values in MessagePack, with numbers and text in the shortest form. It writes frames
// that package protocol never writes.
func pack(b []byte, values ...any) []byte {
	for _, v := range values {
		switch v := v.(type) {
		case raw:
			b = append(b, v...)
		case list:
			b = pack(packArray(b, len(v)), v...)
		case string:
			b = packText(b, v)
		case int:
			if v < 0 {
				b = binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
			} else {
				b = packNumber(b, uint64(v))
			}
		case uint64:
			b = packNumber(b, v)
		default:
			panic(fmt.Sprintf("pack %T", v))
		}
	}
	return b
}

func packArray(b []byte, n int) []byte {
	if n < 16 {
		return append(b, 0x90|byte(n))
	}
	return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
}

func packNumber(b []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(b, byte(v))
	case v <= math.MaxUint8:
		return append(b, 0xcc, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

func packText(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		return append(append(b, 0xa0|byte(n)), s...)
	case n <= math.MaxUint8:
		return append(append(b, 0xd9, byte(n)), s...)
	case n <= math.MaxUint16:
		return append(text16(b, n), s...)
	}
	return append(text32(b, len(s)), s...)
}

func text16(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint16(append(b, 0xda),
		uint16(n))
}
func text32(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0xdb),
		uint32(n))
}

// frame returns one frame with an array of these values.
func frame(values ...any) []byte { return header(pack(nil, list(values))) }

func header(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// appended returns fields of every kind, as a later version may append them. depth is the level of
// the fields.
func appended(depth int) list {
	deep := list{1}
	for range 7 - depth {
		deep = list{deep}
	}
	return list{
		"later", raw("\xc0"), raw("\xc2"), raw("\xc3"), // text, nil, false, true
		raw("\xc4\x02\x00\xff"), raw("\xc5\x00\x01\x80"), raw("\xc6\x00\x00\x00\x01\x80"), // bin
		raw("\xca\x3f\x00\x00\x00"), raw("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"), // floats
		// 2^64-1, -2^63
		raw("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), raw("\xd3\x80\x00\x00\x00\x00\x00\x00\x00"),
		// Maps, one with an array as a key.
		raw("\x82\xa1a\x01\x05\xc0"), raw("\xde\x00\x01\x91\x01\x90"), raw("\xdf\x00\x00\x00\x00"),
		// Fixext, including a timestamp.
		raw("\xd4\x01\x00"), raw("\xd5\x02\x00\x00"), raw("\xd6\xff\x00\x00\x00\x01"),
		raw("\xd7\x03\x00\x00\x00\x00\x00\x00\x00\x00"),
		raw("\xd8\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		raw("\xc7\x00\x05"), raw("\xc8\x00\x01\x06\x00"), raw("\xc9\x00\x00\x00\x01\x07\x00"), // ext
		raw("\xdc\x00\x01\xc0"), raw("\xdd\x00\x00\x00\x00"), raw("\xd9\x01x"), raw("\xda\x00\x01x"),
		raw("\xdb\x00\x00\x00\x01x"),
		deep,
	}
}
