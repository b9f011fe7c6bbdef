package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestWhoInWords(t *testing.T) {
	left := int64(29_000)
	for _, tc := range []struct {
		k    heldKey
		want string
	}{
		{heldKey{Key: "job"}, "nobody holds job\n"},
		// An older daemon sends no holders.
		{heldKey{Key: "job", Held: true, Mode: "exclusive"}, "job is held\n"},
		{heldKey{Key: "job", Held: true, Mode: "exclusive", LeftMS: &left, Holders: []protocol.Holder{
			{Kind: protocol.HolderHere, Session: 9, PID: 815, UID: 1000, Client: "backup/nightly",
				Held: 12_000, Left: 29_000, Fence: 77}}},
			"job is held by process 815 (backup/nightly) of user 1000 on this host, session 9, acquired 12s ago, fence 77; its lease ends in 29s unless it is renewed\n"},
		{heldKey{Key: "job", Held: true, Mode: "exclusive", Holders: []protocol.Holder{
			{Kind: protocol.HolderDaemon, Host: "web-3", Version: "0.1.0", Daemon: 4711, Held: 12_000,
				Left: -1, UID: -1, Note: "not on a:1"}}},
			"job is held by web-3 (not on a:1), daemon 0.1.0, process 4711 there, acquired 12s ago\n"},
		{heldKey{Key: "pool", Held: true, Mode: "permit", Holders: []protocol.Holder{
			{Kind: protocol.HolderUnregistered, Name: "wThcjhdMeW3Yi7_GUSIGTQ", Held: -1, Left: -1, UID: -1},
			{Kind: protocol.HolderForeign, Name: "theirs", Held: -1, Left: 1_500, UID: -1}}},
			"pool is held by an unregistered daemon: wThcjhdMeW3Yi7_GUSIGTQ (permit)\n" +
				"pool is held by another program: theirs; its lease ends in 1.5s unless it is renewed (permit)\n"},
		{heldKey{Key: "job", Held: true, Mode: "exclusive",
			Holders: []protocol.Holder{{Kind: protocol.HolderHere, Held: -1, Left: -1, UID: -1}}},
			"job is held by this host, but by none of its clients: the lease is kept for the next one, or is being released\n"},
	} {
		var b bytes.Buffer
		if err := tc.k.write(&b); err != nil || b.String() != tc.want {
			t.Errorf("%v\n%s\nand not\n%s", err, b.String(), tc.want)
		}
	}
}

// Hosts, clients and foreign programs choose their names. The output has none of their control
// characters.
func TestWhoEscapesNames(t *testing.T) {
	const hostile = "\x1b]0;owned\x07\x1b[2J\nroot\u202e"
	var b bytes.Buffer
	k := heldKey{Key: "k", Held: true, Mode: "exclusive"}
	for kind := protocol.HolderKind(0); kind <= protocol.HolderForeign+1; kind++ {
		k.Holders = append(k.Holders, protocol.Holder{Kind: kind, Host: hostile,
			Version: hostile, Name: hostile,
			Note: hostile, Client: hostile, Session: 1, PID: 1})
	}
	if err := k.write(&b); err != nil {
		t.Fatal(err)
	}
	if out := b.String(); strings.ContainsAny(out, "\x1b\x07\u202e") ||
		strings.Count(out, "\n") != len(k.Holders) {
		t.Errorf("%q", out)
	}
	b.Reset()
	by := k.Holders[2]
	if err := writeTable(&b, []storedLock{{Key: "k", By: &by}}, storedTitles,
		storedCells); err != nil || strings.ContainsAny(b.String(), "\x1b\x07\u202e") {
		t.Errorf("%q, %v", b.String(), err)
	}
}
