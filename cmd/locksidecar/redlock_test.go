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

// A reload may allow longer TTLs on Redlock. Afterwards locks can be acquired, and restarted nodes
// wait for the longer TTL before they vote. So a lock that is held gets no second holder after two
// restarts.
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
	// for the longer TTL, the nodes may have started too recently
	eventually(t, "the nodes vote", func() bool {
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
	// Its store may be down for another moment.
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
