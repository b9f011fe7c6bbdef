package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A reload may allow longer TTLs on Redlock. Locks can be taken afterwards, and nodes that are
// restarted wait for as much longer before they vote: two restarts give a lock that is held to no
// second holder.
func TestAReloadWithLongerTTLsAndRestartedNodes(t *testing.T) {
	t.Parallel()
	var nodes []*testserver.Redis
	var addrs []string
	for range 3 {
		n := testserver.StartRedis(t)
		nodes, addrs = append(nodes, n), append(addrs, n.Addr())
	}
	conf := func(ttl string) string {
		return "stores:\n  r: {upstream: 'redlock://" + strings.Join(addrs,
			",") + "'}\nttl: " + ttl + "\nnamespaces:\n  'x:': {store: r}\n"
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(conf("1s")), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := newHost(t, "--config", file), newHost(t, "--config", file)
	a.reloads(file, conf("4s"), "reloaded")
	b.reloads(file, conf("4s"), "reloaded")
	eventually(t, "the nodes vote", func() bool { // for the longer TTL they may be too young
		p := b.run("lock", "-n", "x:k", "--", "true")
		<-p.done
		return exitCode(p.cmd.ProcessState) == 0
	})
	c, err := client.Dial(t.Context(), a.socket, client.Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var hold *client.Hold
	// its store may be down for a moment more
	eventually(t, "the first host has the lock", func() bool {
		hold, err = c.Lock(t.Context(), client.AcquireArgs{Key: "x:k", Owner: 1, Wait: -1,
			TTL: 8 * time.Second, Fixed: true})
		return err == nil
	})
	for _, n := range nodes[:2] {
		n.Kill()
		n.Start()
	}
	for _, n := range nodes[:2] {
		eventually(t, "the node has run for longer than the shorter TTL", func() bool {
			up, err := strconv.Atoi(n.Info("uptime_in_seconds"))
			return err == nil && up >= 3
		})
	}
	p := b.run("lock", "-n", "x:k", "--", "true")
	<-p.done
	if hold.Remaining() > 0 && exitCode(p.cmd.ProcessState) == 0 {
		t.Error("a second host has the lock")
	}
}
