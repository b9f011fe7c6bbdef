package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

const (
	refreshGap   = 50 * time.Millisecond  // the shortest time between two refreshes of the map
	refreshSoon  = 200 * time.Millisecond // until the next refresh while the cluster has a fault
	refreshLate  = 30 * time.Second       // in a healthy cluster, where MOVED reports changes earlier
	refreshWidth = 6                      // the number of nodes to ask at a time
)

// cluster knows which node serves which slot. It replaces go-redis's ClusterClient, which sends a
// whole pipeline again after a LOADING or a cut connection, even if parts of it were carried out.
type cluster struct {
	store *Store
	slots [slotCount]atomic.Pointer[node]
	stale chan struct{} // has an element if the map may be outdated

	refreshing sync.Mutex // held during a refresh; locked before mu
	mu         sync.Mutex
	nodes      map[string]*node // by address; guarded by mu, as is all below
	masters    []*node
	others     []string             // addresses of replicas
	unused     map[string]time.Time // since when a node has been missing from the map
	holes      int                  // slots that no node serves
}

func newCluster(s *Store) *cluster {
	return &cluster{store: s, stale: make(chan struct{}, 1), nodes: map[string]*node{},
		unused: map[string]time.Time{}, holes: slotCount}
}

func (c *cluster) serves(slot uint16) *node { return c.slots[slot].Load() }

// requestRefresh makes follow refresh the map soon. It does not block.
func (c *cluster) requestRefresh() {
	select {
	case c.stale <- struct{}{}:
	default:
	}
}

// at returns the node with an address, and makes it if necessary.
func (c *cluster) at(addr string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[addr]
	if n == nil {
		n = c.store.newNode(addr, nil)
		c.nodes[addr] = n
	}
	return n
}

// moved records the redirection "SLOT HOST:PORT" of the node from.
func (c *cluster) moved(slot uint16, rest string, from *node) *node {
	n := c.redirectTarget(rest, from)
	if n != nil {
		c.slots[slot].Store(n)
	}
	c.requestRefresh()
	return n
}

// redirectTarget returns the node that "SLOT HOST:PORT" names, or nil if that is malformed.
func (c *cluster) redirectTarget(rest string, from *node) *node {
	_, addr, _ := strings.Cut(rest, " ")
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	if addr = from.addressOf(host, port); addr == from.addr {
		return nil
	}
	return c.at(addr)
}

// addressOf returns the address of a node as another node reports it. A node may leave out the host
// if it is its own.
func (n *node) addressOf(host, port string) string {
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(n.addr)
	}
	return net.JoinHostPort(host, port)
}

// follow refreshes the map until ctx ends.
func (c *cluster) follow(ctx context.Context) {
	for {
		_ = c.refresh(ctx)
		late := refreshLate
		if c.unhealthy(ctx) {
			late = refreshSoon
		}
		driverkit.Sleep(ctx, refreshGap)
		select {
		case <-ctx.Done():
			return
		case <-c.stale:
		case <-time.After(late):
		}
	}
}

// unhealthy reports whether the cluster has a fault. It probes nodes that did not answer.
func (c *cluster) unhealthy(ctx context.Context) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	bad := c.holes > 0
	for _, n := range c.nodes {
		if n.silent.Load() && n.probed.CompareAndSwap(false, true) {
			c.store.wg.Go(func() { n.probe(ctx, c.store.cfg.Timeout) })
		}
		bad = bad || n.silent.Load()
	}
	for _, n := range c.masters {
		bad = bad || n.bad.Load()
	}
	return bad
}

// probe checks whether a silent node answers again.
func (n *node) probe(ctx context.Context, timeout time.Duration) {
	defer n.probed.Store(false)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if n.reach(ctx) == nil {
		n.bad.Store(false)
		n.silent.Store(false)
	}
}

// ensureMap makes the map unless there is one.
func (c *cluster) ensureMap(ctx context.Context) error {
	c.mu.Lock()
	none := len(c.masters) == 0
	c.mu.Unlock()
	if none {
		return c.refresh(ctx)
	}
	return nil
}

func (c *cluster) masterNodes() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.masters
}

// down reports whether no master is known to work.
func (c *cluster) down() bool {
	for _, n := range c.masterNodes() {
		if !n.bad.Load() && !n.silent.Load() {
			return false
		}
	}
	return true
}

// inspect reaches the masters. It fails if none can be used, or if one must not be used.
func (c *cluster) inspect(ctx context.Context) ([]*node, error) {
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	nodes := c.masterNodes()
	if len(nodes) == 0 {
		return nil, fmt.Errorf("redis at %s: %w: its cluster serves no slots yet",
			c.store.cfg.Addr, ErrServer)
	}
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			errs[i] = n.reach(ctx)
			n.bad.Store(errs[i] != nil)
		})
	}
	wg.Wait()
	var fine []*node
	for i, err := range errs {
		switch {
		case err == nil:
			fine = append(fine, nodes[i])
		case errors.Is(err, ErrServer):
			return nil, err
		default:
			c.store.log.Warn("a master of the redis cluster cannot be reached", zap.Error(err))
		}
	}
	if len(fine) == 0 {
		return nil, errs[0]
	}
	return fine, nil
}

// ping asks all masters. It succeeds if one of them says that the cluster works.
func (c *cluster) ping(ctx context.Context) error {
	if err := c.ensureMap(ctx); err != nil {
		return err
	}
	nodes := c.masterNodes()
	errs := make(chan error, len(nodes))
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, n := range nodes {
		wg.Go(func() {
			v, err := n.view(ctx)
			if err == nil && !v.ok {
				err = fmt.Errorf("redis at %v: it says that the cluster is down", n)
			}
			errs <- err
		})
	}
	err := errors.New("no node of the cluster is known")
	for range nodes {
		if err = <-errs; err == nil {
			break
		}
	}
	c.requestRefresh()
	return err
}

func (c *cluster) close() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		err = errors.Join(err, n.client.Close())
	}
	return err
}

// serves returns the node that serves a slot now, or nil if none is known.
func (s *Store) serves(slot uint16) *node {
	if s.cluster != nil {
		return s.cluster.serves(slot)
	}
	return s.single
}
