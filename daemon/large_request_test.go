package daemon_test

import (
	"bytes"
	"testing"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// A client writes a large request, a part of it for each keepalive: it cannot put a ping into its
// midst. "Anything sent counts", says PROTOCOL.md, so it is not silent.
func TestAClientInTheMidstOfALargeRequestIsNotSilent(t *testing.T) {
	t.Parallel()
	h, _ := spaces(t, engine.Namespace{Prefix: "a", Store: "second", Heartbeat: patience})
	r := h.raw().hello()
	r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte("a"), TTL: 30_000})
	if m := r.next(); m.ID != 2 || m.Code != protocol.OK {
		t.Fatalf("%+v", m)
	}
	q := &protocol.Request{Op: protocol.OpAcquireMany, ID: 3, TTL: 30_000}
	for i := range byte(60) {
		q.Keys = append(q.Keys, append(bytes.Repeat([]byte{'k'}, 500), '0'+i))
	}
	rest := protocol.AppendRequest(nil, q)
	for range 8 { // of which three are a heartbeat
		r.bytes(rest[:2000])
		rest = rest[2000:]
		m := r.next()
		if m.Event == protocol.EventLost {
			key, _, _, reason, _ := m.Lost()
			t.Fatalf("%s is lost (%d), with %d bytes of the request still to come", key, reason, len(rest))
		}
		if m.Event != protocol.EventKeepalive {
			t.Fatalf("%+v", m)
		}
	}
	r.bytes(rest)
}
