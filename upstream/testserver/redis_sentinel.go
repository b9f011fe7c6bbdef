package testserver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// RedisSentinel is a private master with two replicas and three sentinels, which know the master as
// MasterName.
type RedisSentinel struct {
	Nodes     []*Redis // the first one is the master at the start
	Sentinels []*Redis
	t         testing.TB
}

// MasterName is the sentinels' name for the master.
const MasterName = "main"

// StartRedisSentinel starts the servers and the sentinels. It returns when the sentinels know each
// other and the replicas. A master that is silent for half a second counts as failed. conf has
// further lines of the sentinels' configuration. args are the arguments of the servers.
func StartRedisSentinel(t testing.TB, conf string, args ...string) *RedisSentinel {
	t.Helper()
	c := &RedisSentinel{t: t}
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...)
	master := StartRedis(t, args...)
	c.Nodes = []*Redis{master}
	for range 2 {
		c.Nodes = append(c.Nodes, StartRedis(t, append([]string{"--replicaof",
			"127.0.0.1 " + fmt.Sprint(master.Port())}, args...)...))
	}
	c.until("the replicas follow", func() bool { return c.follow(master) == 2 })
	conf = fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2\nsentinel down-after-milliseconds %[1]s 500\n"+
		"sentinel failover-timeout %[1]s 3000\n%[3]s\n", MasterName, master.Port(), conf)
	for range 3 {
		c.Sentinels = append(c.Sentinels, StartRedisConf(t, conf, "--sentinel"))
	}
	c.until("the sentinels know all", func() bool {
		for _, s := range c.Sentinels {
			f := s.Admin().Do(context.Background(), "SENTINEL", "MASTER", MasterName)
			text := fmt.Sprint(f.Val())
			if !strings.Contains(text, "num-slaves 2") || !strings.Contains(text, "num-other-sentinels 2") {
				return false
			}
		}
		return true
	})
	return c
}

func (c *RedisSentinel) follow(master *Redis) int {
	return strings.Count(master.Admin().Info(context.Background(), "replication").Val(),
		"state=online")
}

func (c *RedisSentinel) until(what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(startBound); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("it never comes true that %s", what)
		}
	}
}

// URL returns a URL with the sentinels and the master.
func (c *RedisSentinel) URL() string {
	var hosts []string
	for _, s := range c.Sentinels {
		hosts = append(hosts, s.Addr())
	}
	return "redis+sentinel://" + strings.Join(hosts, ",") + "/" + MasterName
}

// Master returns the master according to most running sentinels.
func (c *RedisSentinel) Master() *Redis {
	c.t.Helper()
	votes := map[string]int{}
	for _, s := range c.Sentinels {
		if s.cmd == nil {
			continue
		}
		v, _ := s.Admin().Do(context.Background(), "SENTINEL", "GET-MASTER-ADDR-BY-NAME",
			MasterName).StringSlice()
		votes[strings.Join(v, ":")]++
	}
	for _, n := range c.Nodes {
		if votes[n.Addr()] >= 2 {
			return n
		}
	}
	return nil
}

// Failover makes the sentinels choose another master. It waits until the sentinels and the new
// master agree, and a replica follows the new master.
func (c *RedisSentinel) Failover() {
	c.t.Helper()
	old := c.Master()
	c.until("a sentinel starts the fail-over", func() bool {
		return c.Sentinels[0].Admin().Do(context.Background(), "SENTINEL", "FAILOVER",
			MasterName).Err() == nil
	})
	c.WaitOther(old)
}

// WaitOther waits until another node than old is the master and a replica follows it. old may
// continue to act as a master for about ten seconds, until the sentinels have told it.
func (c *RedisSentinel) WaitOther(old *Redis) {
	c.t.Helper()
	c.until("there is another master", func() bool {
		m := c.Master()
		return m != nil && m != old && m.cmd != nil && m.Info("role") == "master" && c.follow(m) > 0
	})
}
