package redis

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
)

// node is one server that batches go to. Behind Sentinel it is whichever server is
// the master.
type node struct {
	addr   string // for people
	dialer *dialer
	client *goredis.Client
	// silent is set while the server is known not to answer. Of a cluster's node
	// nothing is asked then but whether it does again.
	silent atomic.Bool
	bad    atomic.Bool  // it did not answer the last time, or cannot write
	probed atomic.Bool  // … and it is being asked whether it does again
	online atomic.Int32 // its replicas when last seen, -1 when not known

	clockRead atomic.Int64 // the boot clock when the server's clock was last read
}

// newNode makes a node at addr; where finds its address if it is not fixed.
func (s *Store) newNode(addr string, where func(context.Context) (string, error)) *node {
	cfg := s.cfg
	cfg.Addr = addr
	n := &node{addr: addr, dialer: newDialer(&s.cfg, where, &s.open)}
	n.online.Store(-1)
	n.client = cfg.client(n.dialer, func(ctx context.Context, cn *goredis.Conn) error {
		return s.check(ctx, cn, n)
	})
	return n
}

// reach makes one connection, checks included.
func (n *node) reach(ctx context.Context) error {
	if err := n.client.Ping(ctx).Err(); err != nil {
		return n.unreached(err)
	}
	return nil
}

// unreached says where an error comes from, and what to look at.
func (n *node) unreached(err error) error {
	if errors.Is(err, ErrServer) {
		return fmt.Errorf("redis at %v: %w", n, err)
	}
	return advice(fmt.Errorf("redis at %v, as the store URL says: %w", n, err))
}

// String says where the node is, for people.
func (n *node) String() string {
	if n.dialer.where == nil {
		return n.addr
	}
	if at := n.dialer.last.Load(); at != nil {
		return fmt.Sprintf("%s (%s, as its sentinels say)", n.dialer.cfg.Master, *at)
	}
	return fmt.Sprintf("%s (of the sentinels %s)", n.dialer.cfg.Master, n.addr)
}
