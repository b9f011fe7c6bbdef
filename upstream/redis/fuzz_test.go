package redis

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// reply makes a value from bytes as go-redis makes it from a server's answer: a number, a text,
// nil, or a list of such values.
func reply(b []byte, depth int) (v any, rest []byte) {
	if len(b) == 0 {
		return nil, nil
	}
	kind, b := b[0], b[1:]
	switch kind % 5 {
	case 0:
		return nil, b
	case 1:
		if len(b) == 0 {
			return int64(0), b
		}
		return int64(int8(b[0])), b[1:]
	case 2:
		if len(b) < 8 {
			return int64(kind), b
		}
		return int64(binary.BigEndian.Uint64(b)), b[8:]
	case 3:
		n := min(int(kind/5), len(b))
		return string(b[:n]), b[n:]
	}
	list := []any{}
	for n := int(kind / 5); n > 0 && depth < 4 && len(b) > 0; n-- {
		v, b = reply(b, depth+1)
		list = append(list, v)
	}
	return list, b
}

// FuzzAnswer checks that every op ends with a valid status, whatever a server answers to a script,
// and that only grants have a base.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte{1, 7})
	f.Add([]byte{4 + 5*4, 2, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 3, 1, 100})
	f.Add([]byte{4 + 5*4, 1, 0, 1, 2, 1, 6, 3 + 5*9, '-', 'R', 'E', 'A', 'D', 'O', 'N', 'L', 'Y'})
	f.Add([]byte{4 + 5*7, 1, 1, 1, 0, 1, 0, 3 + 5*2, 'f', 'k', 1, 2, 1, 15, 1, 1})
	// These ops are queued for a very long time.
	f.Add([]byte("\x18\x02\x00\x00\x00\x00\x01\x00\x00\f\x01\x01\x01\"M7\xec\xb5\xdf\a\x13\aN"))
	f.Add([]byte{4 + 5, 3 + 5*3, 'O', 'O', 'M'})
	f.Fuzz(func(t *testing.T, b []byte) {
		ops := []upstream.Op{{Kind: cache.OpTry}, {Kind: cache.OpJoin}, {Kind: cache.OpWithdraw},
			{Kind: cache.OpRelease},
			{Kind: cache.OpRenew, Rebase: true}, {Kind: cache.OpDowngrade},
			{Kind: cache.OpPeek, Mode: cache.Permit}}
		x := &batch{store: &Store{fences: upstream.NewFenceClock(nil)}, ops: ops,
			results: make([]upstream.Result, len(ops))}
		c := &call{pipeline: &pipeline{node: &node{addr: "redis:6379", dialer: &dialer{}}}}
		for i := range ops {
			c.ops = append(c.ops, int32(i))
		}
		v, _ := reply(b, 0)
		if err := x.readReply(c, v); err != nil && !errors.Is(err, errAnswer) {
			t.Error(err)
		}
		for i, r := range x.results {
			if r.Status.String() == "" || r.Left < -1 {
				t.Errorf("%v ends as %+v", ops[i].Kind, r)
			}
			if r.Status == cache.Granted && !slices.Contains([]cache.OpKind{cache.OpTry, cache.OpJoin},
				ops[i].Kind) {
				t.Errorf("%v is granted", ops[i].Kind)
			}
		}
	})
}

// FuzzHints covers published messages, the map of a cluster, and the cursor of a list, which a
// client gives.
func FuzzHints(f *testing.F) {
	for _, s := range []string{"fkey", "wkey", "tkey", "F1z key", "Wkey", "", "F", "F key",
		`{"Node":"a:1","Skip":3}`, `{"Skip":-1}`} {
		f.Add(s, []byte{4 + 5*3, 1, 0, 1, 9, 4 + 5*2, 3 + 5, 'h', 1, 7})
	}
	n := &node{addr: "redis:6379"}
	f.Fuzz(func(t *testing.T, s string, b []byte) {
		if h, ok := parseHint(s); ok && (h.Kind < cache.HintAvailable || h.Kind > cache.HintTried) {
			t.Errorf("%+v", h)
		}
		if p, err := parsePosition(s); err == nil {
			if again, err := parsePosition(p.String()); err != nil || again.String() != p.String() {
				t.Errorf("%v is read as %v: %v", p, again, err)
			}
		}
		v, _ := reply(b, 0)
		if r, ok := n.parseRange(v); ok && (len(r.addrs) == 0 || r.from < 0 || r.from > r.to ||
			r.to >= slotCount) {
			t.Errorf("%+v", r)
		}
	})
}
