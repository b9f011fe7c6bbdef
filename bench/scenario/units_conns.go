package scenario

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// connections measures unused connections of a pool, and connections that listen for hints.
func (b *redisBill) connections() error {
	for _, kind := range []struct{ row, says string }{
		{"a connection", "PING\r\n"},
		{"a connection that listens for hints", "SUBSCRIBE locksidecar:hint:0123456789012345678901\r\n"},
	} {
		if err := b.connected(kind.row, kind.says); err != nil {
			return err
		}
	}
	return nil
}

func (b *redisBill) connected(row, says string) error {
	n := b.e.some(bareConns)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	before, err := b.memory()
	if err != nil {
		return err
	}
	for range n {
		c, err := net.Dial("tcp", b.nodes[0].Addr)
		if err != nil {
			return err
		}
		conns = append(conns, c)
		if _, err = c.Write([]byte(says)); err == nil {
			_, err = c.Read(make([]byte, 512))
		}
		if err != nil {
			return err
		}
	}
	used, err := b.memory()
	if err != nil {
		return err
	}
	time.Sleep(time.Duration(b.e.some(int(silent))))
	still, err := b.memory()
	if err != nil {
		return err
	}
	b.add(row+", just used", harness.Metrics{"bytes": (used - before) / float64(n)})
	b.add(row+", silent for some seconds", harness.Metrics{"bytes": (still - before) / float64(n)})
	b.passing(row+", a second of it", n)
	return nil
}

const looks = 500

// look measures a daemon's request to a node for the map of the cluster, which it sends every half
// minute.
func (b *redisBill) look() error {
	_, err := asked(b.nodes[0].Addr, func(ctx context.Context, c *redis.Client) (any, error) {
		cpu, began := b.cpu(), time.Now()
		for range looks {
			p := c.Pipeline()
			p.Do(ctx, "cluster", "info")
			p.Do(ctx, "cluster", "slots")
			if _, err := p.Exec(ctx); err != nil {
				return nil, err
			}
		}
		b.took("a look at the map of three nodes", looks, b.cpu()-cpu, time.Since(began))
		return nil, nil
	})
	return err
}
