package engine

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

// A reload changes the frame limit. Sessions keep the one that their welcome stated, in both
// directions and over a takeover: their clients know no other.
func TestSessionsKeepTheFrameLimitOfTheirWelcome(t *testing.T) {
	set := func(e *Engine, frame int) {
		e.SetLimits(Limits{MaxHolds: 10_000, MaxWaiters: 10_000, MaxFrame: frame, OutBuffer: 1 << 20})
	}
	for _, c := range []struct {
		name       string
		told, then int
		code       protocol.Code
	}{
		{"lower", 1 << 16, 1 << 12, protocol.OK},
		{"higher", 1 << 14, 1 << 20, protocol.Overlong}, // the grants may take more than the client reads
	} {
		q := protocol.Request{Op: protocol.OpAcquireMany, ID: 9, TTL: 30_000}
		for i := range 500 {
			q.Keys = append(q.Keys, fmt.Appendf(nil, "key:%016d", i))
		}
		begin := func(t *testing.T) *beating {
			b := newBeating(t)
			b.e.End(b.s)
			set(b.e, c.told)
			b.s, b.k = open(t, b.e)
			return b
		}
		check := func(t *testing.T, b *beating, s *Session, k *sink) {
			t.Helper()
			send(s, &q)
			b.answer()
			if m := k.last(t); m.ID != q.ID || m.Code != c.code {
				t.Errorf("request %d is answered with %v, want %v", m.ID, m.Code, c.code)
			}
		}
		t.Run(c.name, func(t *testing.T) {
			b := begin(t)
			set(b.e, c.then)
			check(t, b, b.s, b.k)
		})
		t.Run(c.name+", takeover", func(t *testing.T) {
			b, next := begin(t), newBeating(t)
			set(next.e, c.then)
			s := b.takenOver(next)
			check(t, next, s, s.transport.(*sink))
		})
	}
}
