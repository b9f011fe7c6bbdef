package protocol

import "encoding/hex"

// traceLen is the length of a traceparent of version 00, and the least length of a later version.
const traceLen = 55

// Traceparent is a position in a trace of the caller, as defined by W3C Trace Context.
type Traceparent struct {
	Trace  [16]byte
	Parent [8]byte
	Flags  byte // 1 means sampled
}

// ParseTraceparent reads a traceparent. ok is false if s is not a valid one. It does not allocate.
func ParseTraceparent[S ~string | ~[]byte](s S) (p Traceparent, ok bool) {
	if len(s) < traceLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return p, false
	}
	var version, flags [1]byte
	if !unhex(version[:], s[:2]) || !unhex(p.Trace[:], s[3:35]) || !unhex(p.Parent[:], s[36:52]) ||
		!unhex(flags[:], s[53:55]) {
		return p, false
	}
	switch v := version[0]; {
	case v == 0xff, v == 0 && len(s) > traceLen, len(s) > traceLen && s[traceLen] != '-':
		return p, false
	}
	p.Flags = flags[0]
	return p, p.Trace != [16]byte{} && p.Parent != [8]byte{}
}

// unhex reads hexadecimal digits. Only lower case is allowed.
func unhex[S ~string | ~[]byte](b []byte, s S) bool {
	for i := range b {
		hi, lo := nibble(s[2*i]), nibble(s[2*i+1])
		if hi|lo > 0xf {
			return false
		}
		b[i] = hi<<4 | lo
	}
	return true
}

func nibble(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

// String returns p in the form of version 00.
func (p Traceparent) String() string {
	b := append(make([]byte, 0, traceLen), "00-"...)
	b = append(hex.AppendEncode(b, p.Trace[:]), '-')
	b = append(hex.AppendEncode(b, p.Parent[:]), '-')
	return string(hex.AppendEncode(b, []byte{p.Flags}))
}
