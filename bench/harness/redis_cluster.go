package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// RedisCluster is a private Redis Cluster that has only masters.
type RedisCluster []*Redis

// StartRedisCluster starts n masters with directories of their own in dir, and assigns each the
// same number of slots. It returns when all masters agree that the cluster works.
func StartRedisCluster(dir string, n int) (c RedisCluster, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	buses := make([]string, n)
	for i := range n {
		own := filepath.Join(dir, fmt.Sprint("node", i))
		if err := os.MkdirAll(own, 0o700); err != nil {
			return c, err
		}
		bus, err := freeAddr()
		if err != nil {
			return c, err
		}
		_, buses[i], _ = net.SplitHostPort(bus)
		r, err := StartRedis(own, "--cluster-enabled", "yes", "--cluster-port", buses[i])
		if err != nil {
			return c, err
		}
		c = append(c, r)
	}
	const slots = 16384
	for i, r := range c {
		_, port, _ := net.SplitHostPort(r.Addr)
		for _, cmd := range [][]any{
			{"CLUSTER", "SET-CONFIG-EPOCH", i + 1},
			{"CLUSTER", "ADDSLOTSRANGE", i * slots / n, (i+1)*slots/n - 1},
		} {
			if err := r.client.Do(context.Background(), cmd...).Err(); err != nil {
				return c, fmt.Errorf("%v: %w", cmd, err)
			}
		}
		if i > 0 {
			if err := c[0].client.Do(context.Background(), "CLUSTER", "MEET", "127.0.0.1", port,
				buses[i]).Err(); err != nil {
				return c, fmt.Errorf("meet node %d: %w", i, err)
			}
		}
	}
	for _, r := range c {
		if err := r.await(func() error { return r.joined(n) }); err != nil {
			return c, err
		}
	}
	return c, nil
}

// joined returns nil if a node knows n nodes, and all slots are served.
func (r *Redis) joined(n int) error {
	s, err := r.client.ClusterInfo(context.Background()).Result()
	if err != nil {
		return err
	}
	f := infoFields(s)
	if f["cluster_state"] != "ok" || f["cluster_known_nodes"] != fmt.Sprint(n) ||
		f["cluster_slots_ok"] != "16384" {
		return fmt.Errorf("the cluster does not work yet: %s", strings.ReplaceAll(s, "\r\n", " "))
	}
	return nil
}

// URL returns a URL that names all nodes.
func (c RedisCluster) URL() string {
	addrs := make([]string, len(c))
	for i, r := range c {
		addrs[i] = r.Addr
	}
	return "redis+cluster://" + strings.Join(addrs, ",")
}

// Stop ends all nodes.
func (c RedisCluster) Stop() (err error) {
	for _, r := range c {
		err = errors.Join(err, r.Stop())
	}
	return err
}
