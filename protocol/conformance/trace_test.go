package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestFramesAsText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from  byte
		frame []byte
		want  string
	}{
		{'C', frame(1, 1, 1, 1, "demo", ""), `C hello [1, 1, 1, 1, "demo", ""]`},
		{'C', frame(2, 9, "k\n", 1, 0, -1, 0, 0), `C acquire [2, 9, "k\n", 1, 0, -1, 0, 0]`},
		{'C', frame(9, 9, list{list{"k", 5}}, 1, 0), `C release-many [9, 9, [["k", 5]], 1, 0]`},
		{'C', frame(99, 1), `C [99, 1]`},
		{'D', frame(0, 9, 5, 100, 1_000_000, 1, 0, 0), `D ok [0, 9, 5, 100, 1000000, 1, 0, 0]`},
		{'D', frame(3, 9, "why"), `D not_held [3, 9, "why"]`},
		{'D', frame(64, 0, "k", 1, 5, 4), `D lost [64, 0, "k", 1, 5, 4]`},
		{'D', frame(200, 0, raw("\xc4\x01\xff"), raw("\xc0"), raw("\x81\xa1a\xc3"),
			raw("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00")),
			`D [200, 0, <ff>, nil, {"a", true}, <7ff8000000000000>]`},
		{'D', header([]byte{0x92, 0xc1, 1}), "D not a message: 92 c1 01"},
		{'D', header([]byte{0x92, 0xcd, 1}), "D not a message: 92 cd 01"},
		{'D', []byte{0, 0, 0, 0}, "D a header of 0 bytes"},
		{'D', []byte{0xff, 0, 0, 0}, "D a header of 4278190080 bytes"},
	} {
		for _, size := range []int{1, len(c.frame)} {
			var lines []string
			r := tracer{note: func(line string) { lines = append(lines, line) }, from: c.from}
			for piece := range slices.Chunk(c.frame, size) {
				r.saw(piece)
			}
			if got := strings.Join(lines, "; "); got != c.want {
				t.Errorf("% x in pieces of %d: %s; want %s", c.frame, size, got, c.want)
			}
		}
	}
	all := appended(1)
	if text, rest, err := valueText(pack(nil, all), 0); err != nil || len(rest) > 0 {
		t.Errorf("%s, %d bytes are left, %v", text, len(rest), err)
	}
	var r tracer
	r.from, r.note = 'D', func(string) {}
	r.saw(protocol.AppendLost(nil, "k", 1, 2, protocol.LostGone)[:7]) // the rest never comes
}
