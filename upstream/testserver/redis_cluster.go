package testserver

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// RedisCluster is a private Redis Cluster.
type RedisCluster struct {
	Nodes []*Redis // masters first, then the replicas of the first, of the second …
	t     testing.TB
	seeds []*Redis
}

// clusterSlots is the number of hash slots.
const clusterSlots = 16384

// StartRedisCluster starts a cluster with evenly distributed slots, and returns when it works and
// all replicas follow. A node that is silent for a second counts as failed. args are the arguments
// of every node.
func StartRedisCluster(t testing.TB, masters, replicasEach int, args ...string) *RedisCluster {
	t.Helper()
	c := &RedisCluster{t: t}
	for range masters * (1 + replicasEach) {
		c.Nodes = append(c.Nodes, c.start(args))
	}
	c.seeds = c.Nodes[:masters]
	for i, n := range c.seeds {
		n.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		n.Do("CLUSTER", "ADDSLOTSRANGE", i*clusterSlots/masters, (i+1)*clusterSlots/masters-1)
	}
	for _, n := range c.Nodes[1:] {
		c.Meet(n)
	}
	for i, n := range c.Nodes[masters:] {
		c.Replicate(n, c.Nodes[i/replicasEach])
	}
	c.WaitOK()
	return c
}

func (c *RedisCluster) start(args []string) *Redis {
	return StartRedis(c.t, append([]string{"--cluster-enabled", "yes", "--cluster-port",
		strconv.Itoa(ReservePort(c.t)),
		"--cluster-node-timeout",
		"1000",
		"--cluster-allow-replica-migration", "no", "--cluster-replica-validity-factor", "0",
		"--repl-diskless-sync-delay", "0"}, args...)...)
}

// Add starts one more master, without slots.
func (c *RedisCluster) Add(args ...string) *Redis {
	c.t.Helper()
	n := c.start(args)
	c.Nodes = append(c.Nodes, n)
	c.Meet(n)
	c.WaitOK()
	return n
}

// Meet makes a node known to the cluster.
func (c *RedisCluster) Meet(n *Redis) {
	c.t.Helper()
	c.Nodes[0].Do(meeting(n)...)
}

func meeting(n *Redis) []any {
	return []any{"CLUSTER", "MEET", "127.0.0.1", n.Port(),
		n.args[slices.Index(n.args, "--cluster-port")+1]}
}

// meetAll repeats the handshakes of all running nodes, because a handshake that a busy machine
// delays for a second is lost.
func (c *RedisCluster) meetAll() {
	for _, n := range c.Running() {
		for _, o := range c.Running() {
			if n != o {
				_ = n.Admin().Do(context.Background(), meeting(o)...).Err()
			}
		}
	}
}

// Replicate makes a node a replica of a master, once it knows it.
func (c *RedisCluster) Replicate(n, master *Redis) {
	c.t.Helper()
	id := fmt.Sprint(master.Do("CLUSTER", "MYID"))
	c.until("the replica knows its master", func() bool {
		return n.Admin().Do(context.Background(), "CLUSTER", "REPLICATE", id).Err() == nil
	})
}

func (c *RedisCluster) until(what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(startBound); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			for _, n := range c.Running() {
				c.t.Log(n.Admin().ClusterNodes(context.Background()).Val())
			}
			c.t.Fatalf("it never comes true that %s", what)
		}
	}
}

// Running returns the nodes whose processes run.
func (c *RedisCluster) Running() []*Redis {
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(n *Redis) bool { return n.cmd == nil })
}

// WaitOK waits until all running nodes know each other and report that the cluster works, and until
// all running replicas follow their masters.
func (c *RedisCluster) WaitOK() {
	c.t.Helper()
	looks := 0
	c.until("the cluster works", func() bool {
		if looks++; looks%250 == 0 { // five seconds, and more
			c.meetAll()
		}
		for _, n := range c.Running() {
			ctx := context.Background()
			if !strings.Contains(n.Admin().ClusterInfo(ctx).Val(), "cluster_state:ok") ||
				strings.Count(n.Admin().ClusterNodes(ctx).Val(), "connected") < len(c.Running()) {
				return false
			}
			if repl := n.Admin().Info(ctx, "replication").Val(); strings.Contains(repl, "role:slave") &&
				!strings.Contains(repl, "master_link_status:up") {
				return false
			}
		}
		return c.agree()
	})
}

// agree reports whether all running nodes know the same masters of all slots.
func (c *RedisCluster) agree() bool {
	var first string
	for i, n := range c.Running() {
		var view []string
		for _, r := range n.slots() {
			view = append(view, fmt.Sprint(r))
		}
		slices.Sort(view)
		if s := fmt.Sprint(view); i == 0 {
			first = s
		} else if s != first {
			return false
		}
	}
	return true
}

// slotRange is a node's statement about a range of slots.
type slotRange struct {
	from, to int
	master   string
	nodes    int
}

func (s *Redis) slots() (ranges []slotRange) {
	list, _ := s.Admin().Do(context.Background(), "CLUSTER", "SLOTS").Slice()
	for _, x := range list {
		r := x.([]any)
		master := r[2].([]any)
		ranges = append(ranges, slotRange{int(r[0].(int64)), int(r[1].(int64)),
			fmt.Sprintf("%v:%v", master[0], master[1]), len(r) - 2})
	}
	return ranges
}

// URL returns a URL with the first masters.
func (c *RedisCluster) URL() string {
	var hosts []string
	for _, n := range c.seeds {
		hosts = append(hosts, n.Addr())
	}
	return "redis+cluster://" + strings.Join(hosts, ",")
}

// Owner returns the running node that serves a slot according to the running nodes.
func (c *RedisCluster) Owner(slot int) *Redis {
	c.t.Helper()
	var owner *Redis
	c.until(fmt.Sprintf("somebody serves slot %d", slot), func() bool {
		for _, n := range c.Running() {
			for _, r := range n.slots() {
				for _, o := range c.Running() {
					if r.from <= slot && slot <= r.to && o.Addr() == r.master {
						owner = o
						return true
					}
				}
			}
		}
		return false
	})
	return owner
}

// Slot returns the slot of a name, which a server computes.
func (c *RedisCluster) Slot(name string) int {
	c.t.Helper()
	return int(c.Running()[0].Do("CLUSTER", "KEYSLOT", name).(int64))
}

// BeginMove makes a slot importing at to and migrating at its owner. It returns the owner.
func (c *RedisCluster) BeginMove(slot int, to *Redis) (from *Redis) {
	c.t.Helper()
	from = c.Owner(slot)
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", from.Do("CLUSTER", "MYID"))
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.Do("CLUSTER", "MYID"))
	return from
}

// MoveKeys moves keys of a slot that is moving, or all keys of the slot if none are given.
func (c *RedisCluster) MoveKeys(slot int, from, to *Redis, keys ...any) {
	c.t.Helper()
	all := len(keys) == 0
	for {
		if all {
			keys = from.Do("CLUSTER", "GETKEYSINSLOT", slot, 100).([]any)
		}
		if len(keys) == 0 {
			return
		}
		from.Do(append([]any{"MIGRATE", "127.0.0.1", to.Port(), "", 0, 5000, "KEYS"}, keys...)...)
		if !all {
			return
		}
	}
}

// EndMove gives a slot to node to.
func (c *RedisCluster) EndMove(slot int, from, to *Redis) {
	c.t.Helper()
	id := to.Do("CLUSTER", "MYID")
	to.Do("CLUSTER", "SETSLOT", slot, "NODE", id)
	from.Do("CLUSTER", "SETSLOT", slot, "NODE", id)
}

// Move moves a slot with its keys, as redis-cli does.
func (c *RedisCluster) Move(slot int, to *Redis) {
	c.t.Helper()
	from := c.BeginMove(slot, to)
	c.MoveKeys(slot, from, to)
	c.EndMove(slot, from, to)
}

// Failover makes a replica the master of its shard cleanly and waits for that.
func (c *RedisCluster) Failover(replica *Redis) {
	c.t.Helper()
	replica.Do("CLUSTER", "FAILOVER")
	c.until("the replica is the master", func() bool { return replica.Info("role") == "master" })
}

// Keys returns the names at all running masters.
func (c *RedisCluster) Keys() (names []string) {
	c.t.Helper()
	for _, n := range c.Masters() {
		names = append(names, n.Admin().Keys(context.Background(), "*").Val()...)
	}
	slices.Sort(names)
	return names
}

// Masters returns the running nodes that report that they are masters.
func (c *RedisCluster) Masters() (ms []*Redis) {
	c.t.Helper()
	for _, n := range c.Running() {
		if n.Info("role") == "master" {
			ms = append(ms, n)
		}
	}
	return ms
}

// Stop ends all nodes at once.
func (c *RedisCluster) Stop() {
	var wg sync.WaitGroup
	for _, n := range c.Running() {
		wg.Go(n.Kill)
	}
	wg.Wait()
}
