package conformance

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	goldens "github.com/locksidecar/locksidecar/protocol/vectors"
)

// vector is one golden frame.
type vector struct {
	name   string
	groups [][]byte // header, array's header, values
	fields struct {
		To     int        `json:"to"`
		Code   int        `json:"code"`
		Event  int        `json:"event"`
		Fence  Fence      `json:"fence"`
		Until  uint64     `json:"deadline"`
		Grants [][6]Fence `json:"grants"`
		Codes  []int      `json:"codes"`
		Index  int        `json:"index"`
	}
}

// vectors reads a file. It panics if the file has a fault, because the file is a part of the
// program.
func vectors(file string) (all []vector) {
	b, err := goldens.Files.ReadFile(file)
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		col := strings.Split(line, "\t")
		v := vector{name: col[0]}
		for g := range strings.FieldsSeq(col[1]) {
			b, err := hex.DecodeString(g)
			if err != nil {
				panic(fmt.Sprintf("%s %s: %v", file, v.name, err))
			}
			v.groups = append(v.groups, b)
		}
		if err := json.Unmarshal([]byte(col[2]), &v.fields); err != nil {
			panic(fmt.Sprintf("%s %s: %v", file, v.name, err))
		}
		all = append(all, v)
	}
	return all
}

// The indices of values among the groups of a vector.
const (
	atID       = 3
	atOwner    = 5 // of lost
	atDeadline = 6 // of a grant
)

// with returns the frame with the number at one index replaced. The number keeps its width if that
// is large enough. The header is adapted.
func (v *vector) with(at int, n uint64) []byte {
	if len(v.groups) > at {
		g := v.groups[at]
		v.groups[at] = sameWidth(g, n)
		defer func() { v.groups[at] = g }()
	}
	var payload []byte
	for _, g := range v.groups[1:] {
		payload = append(payload, g...)
	}
	return header(payload)
}

// lasting returns v, a grant, with a deadline of at least until. The number keeps its width if
// possible.
func (v *vector) lasting(until uint64) *vector {
	if len(v.groups) <= atDeadline || v.fields.Until >= until {
		return v
	}
	long := *v
	long.groups = slices.Clone(v.groups)
	long.groups[atDeadline] = sameWidth(v.groups[atDeadline], until)
	return &long
}

// frame returns the bytes of the frame.
func (v *vector) frame() (b []byte) {
	for _, g := range v.groups {
		b = append(b, g...)
	}
	return b
}

func sameWidth(old []byte, n uint64) []byte {
	t := old[0]
	switch {
	case t == 0xcc && n <= math.MaxUint8, t == 0xd0 && n <= math.MaxInt8:
		return []byte{t, byte(n)}
	case t == 0xcd && n <= math.MaxUint16, t == 0xd1 && n <= math.MaxInt16:
		return binary.BigEndian.AppendUint16([]byte{t}, uint16(n))
	case t == 0xce && n <= math.MaxUint32, t == 0xd2 && n <= math.MaxInt32:
		return binary.BigEndian.AppendUint32([]byte{t}, uint32(n))
	case t == 0xcf, t == 0xd3:
		return binary.BigEndian.AppendUint64([]byte{t}, n)
	}
	return packNumber(nil, n)
}
