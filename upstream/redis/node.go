package redis

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
)

// node is a server that receives batches. With Sentinel, it is the present master.
type node struct {
	addr   string // for people
	dialer *dialer
	client *goredis.Client
	// silent is set while the server does not answer. In a cluster, such a node gets only probes.
	silent atomic.Bool
	bad    atomic.Bool  // it did not answer the last call, or cannot write
	probed atomic.Bool  // a probe is in flight
	online atomic.Int32 // the number of its replicas when last checked; -1 if unknown

	clockRead atomic.Int64 // the boot clock when the server's clock was last read
}

// newNode makes the node at addr. where finds its address if that is not fixed.
func (s *Store) newNode(addr string, where func(context.Context) (string, error)) *node {
	cfg := s.cfg
	cfg.Addr = addr
	n := &node{addr: addr, dialer: newDialer(&s.cfg, where, &s.open)}
	n.online.Store(-1)
	n.client = cfg.client(n.dialer, func(ctx context.Context, cn *goredis.Conn) error {
		return s.checkConn(ctx, cn, n)
	})
	return n
}

// reach makes a connection, including its checks.
func (n *node) reach(ctx context.Context) error {
	if err := n.client.Ping(ctx).Err(); err != nil {
		return n.unreached(err)
	}
	return nil
}

// unreached adds the node and the settings to check to an error.
func (n *node) unreached(err error) error {
	if errors.Is(err, ErrServer) {
		return fmt.Errorf("redis at %v: %w", n, err)
	}
	return advice(fmt.Errorf("redis at %v, as the store URL says: %w", n, err))
}

// String returns the address of the node for people.
func (n *node) String() string {
	if n.dialer.where == nil {
		return n.addr
	}
	if at := n.dialer.last.Load(); at != nil {
		return fmt.Sprintf("%s (%s, as its sentinels say)", n.dialer.cfg.Master, *at)
	}
	return fmt.Sprintf("%s (of the sentinels %s)", n.dialer.cfg.Master, n.addr)
}
