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
)

const (
	lookGap   = 50 * time.Millisecond  // at least, between two looks at the cluster
	lookSoon  = 200 * time.Millisecond // while something is wrong with it
	lookLate  = 30 * time.Second       // while nothing is: MOVED tells what is new
	lookWidth = 6                      // nodes asked at once
)

// cluster knows which node serves which slot. It is ours and not go-redis's
// ClusterClient, which sends a whole pipeline again after a LOADING or a cut
// connection, whatever of it was carried out.
type cluster struct {
	store *Store
	slots [slotCount]atomic.Pointer[node]
	stale chan struct{} // holds one when somebody has noticed that the map is old

	looking sync.Mutex // held during a look; before mu
	mu      sync.Mutex
	nodes   map[string]*node // by address; guarded by mu, as is all below
	masters []*node
	others  []string             // addresses of replicas
	unused  map[string]time.Time // nodes that the last look did not find, since when
	holes   int                  // slots that nobody serves
}

func newCluster(s *Store) *cluster {
	return &cluster{store: s, stale: make(chan struct{}, 1), nodes: map[string]*node{}, unused: map[string]time.Time{}, holes: slotCount}
}

func (c *cluster) serves(slot uint16) *node { return c.slots[slot].Load() }

// look has the map made anew soon. It does not block.
func (c *cluster) look() {
	select {
	case c.stale <- struct{}{}:
	default:
	}
}

// at is the node with an address, which may be new.
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

// moved follows "SLOT HOST:PORT", as from has said it.
func (c *cluster) moved(slot uint16, rest string, from *node) *node {
	n := c.asked(rest, from)
	if n != nil {
		c.slots[slot].Store(n)
	}
	c.look()
	return n
}

// asked is the node that "SLOT HOST:PORT" names, nil when that makes no sense.
func (c *cluster) asked(rest string, from *node) *node {
	_, addr, _ := strings.Cut(rest, " ")
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	if addr = from.beside(host, port); addr == from.addr {
		return nil
	}
	return c.at(addr)
}

// beside is the address of a node that another one calls so: it may leave out the
// host when that is its own.
func (n *node) beside(host, port string) string {
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(n.addr)
	}
	return net.JoinHostPort(host, port)
}

// follow keeps the map until ctx ends.
func (c *cluster) follow(ctx context.Context) {
	for {
		_ = c.refresh(ctx)
		late := lookLate
		if c.troubled(ctx) {
			late = lookSoon
		}
		sleep(ctx, lookGap)
		t := time.NewTimer(late)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-c.stale:
		case <-t.C:
		}
		t.Stop()
	}
}

// troubled says whether something is wrong with the cluster, and asks nodes that
// did not answer whether they do again.
func (c *cluster) troubled(ctx context.Context) bool {
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

// probe asks a silent node whether it answers again.
func (n *node) probe(ctx context.Context, timeout time.Duration) {
	defer n.probed.Store(false)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if n.reach(ctx) == nil {
		n.bad.Store(false)
		n.silent.Store(false)
	}
}

// known makes the map unless there is one.
func (c *cluster) known(ctx context.Context) error {
	c.mu.Lock()
	none := len(c.masters) == 0
	c.mu.Unlock()
	if none {
		return c.refresh(ctx)
	}
	return nil
}

func (c *cluster) all() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.masters
}

// down says whether no master is known to be well.
func (c *cluster) down() bool {
	for _, n := range c.all() {
		if !n.bad.Load() && !n.silent.Load() {
			return false
		}
	}
	return true
}

// inspect reaches the masters. It fails when none can be used, or one must not be.
func (c *cluster) inspect(ctx context.Context) ([]*node, error) {
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	nodes := c.all()
	if len(nodes) == 0 {
		return nil, fmt.Errorf("redis at %s: %w: its cluster serves no slots yet", c.store.cfg.Addr, ErrServer)
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

// ping asks all masters; one that says that the cluster works is enough.
func (c *cluster) ping(ctx context.Context) error {
	if err := c.known(ctx); err != nil {
		return err
	}
	nodes := c.all()
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
	c.look()
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
