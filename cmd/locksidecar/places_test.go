package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A ZooKeeper that has lost its data is refused, because its fences would fall. The daemon that
// used it refuses it, and so does a process that takes over from that daemon.
func TestATakeoverKeepsTheTransactionIDsOfZooKeeper(t *testing.T) {
	t.Parallel()
	zk := testserver.StartZooKeeper(t)
	args := []string{"--upstream", zk.URL() + "?session=" + lease, "--ttl", lease}
	h := newHost(t, args...)
	c := h.client(nil)
	for i := range 500 { // many more transactions than a store session needs
		hold, err := c.Lock(t.Context(), client.AcquireArgs{Key: fmt.Sprint("k", i), Owner: 1,
			Wait: client.Forever})
		if err != nil {
			t.Fatal(err)
		}
		if err := hold.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	zk.Kill()
	zk.Wipe()
	zk.Start()
	eventually(t, "the daemon refuses the server", func() bool {
		return strings.Contains(h.daemon.err.String(), "lost data")
	})
	successor := h.run(append([]string{"serve", "--log-format", "json", "--takeover"}, args...)...)
	successor.ends(69)
	if msg := successor.err.String(); !strings.Contains(msg, "lost data") {
		t.Errorf("the successor ended, and said:\n%s", msg)
	}
	eventually(t, "the daemon continues to serve", func() bool {
		return strings.Contains(h.daemon.err.String(), `"event":"takeover_failed"`)
	})
}
