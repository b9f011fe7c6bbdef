package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
)

// view is the cluster as one node sees it.
type view struct {
	ok     bool // the node says that the cluster works
	epoch  int
	ranges []slotRange
}

type slotRange struct {
	from, to int
	addrs    []string // the master's first
}

// refresh replaces the map. It asks a few nodes and takes the latest view in which the cluster
// works.
func (c *cluster) refresh(ctx context.Context) error {
	c.refreshing.Lock()
	defer c.refreshing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.store.cfg.Timeout)
	defer cancel()
	nodes := c.candidates()
	type answer struct {
		view
		err error
	}
	answers := make(chan answer, len(nodes))
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			v, err := n.view(ctx)
			answers <- answer{v, err}
		})
	}
	var best view
	var fault error
	for range nodes {
		a := <-answers
		if a.err != nil && !errors.Is(fault, ErrServer) {
			fault = a.err
		}
		if a.err != nil {
			continue
		}
		if best.ranges == nil || a.ok && !best.ok || a.ok == best.ok && a.epoch > best.epoch {
			best = a.view
		}
		if a.ok { // Do not wait long for a silent node.
			t := time.AfterFunc(refreshGap, cancel)
			defer t.Stop()
		}
	}
	wg.Wait()
	if best.ranges == nil {
		return cmp.Or(fault, errors.New("no node of the cluster is known"))
	}
	c.apply(best)
	return nil
}

// candidates returns the nodes to ask: masters, and also other nodes if there are few masters.
func (c *cluster) candidates() []*node {
	c.mu.Lock()
	var addrs []string
	for _, n := range c.masters {
		if !n.silent.Load() && !n.bad.Load() {
			addrs = append(addrs, n.addr)
		}
	}
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	if len(addrs) < 2 {
		for _, n := range c.masters {
			addrs = append(addrs, n.addr)
		}
		addrs = append(append(addrs, c.others...), c.store.cfg.Hosts...)
	}
	c.mu.Unlock()
	var nodes []*node
	seen := map[string]bool{}
	for _, a := range addrs {
		if !seen[a] && len(nodes) < refreshWidth {
			seen[a] = true
			nodes = append(nodes, c.at(a))
		}
	}
	return nodes
}

// view reads the cluster as a node sees it, and notes whether the node works.
func (n *node) view(ctx context.Context) (view, error) {
	v, err := n.readView(ctx)
	if err == nil && v.ok {
		n.bad.Store(false)
		n.silent.Store(false)
	} else if ctx.Err() != context.Canceled { // a canceled call says nothing about the node
		n.bad.Store(true)
	}
	return v, err
}

func (n *node) readView(ctx context.Context) (view, error) {
	p := n.client.Pipeline()
	info := p.Do(ctx, "cluster", "info")
	slots := p.Do(ctx, "cluster", "slots")
	if _, err := p.Exec(ctx); err != nil {
		return view{}, n.unreached(err)
	}
	text, _ := info.Text()
	v := view{ok: infoField(text, "cluster_state") == "ok", ranges: []slotRange{}}
	v.epoch, _ = strconv.Atoi(infoField(text, "cluster_current_epoch"))
	list, err := slots.Slice()
	if err != nil {
		return view{}, n.unreached(err)
	}
	for _, x := range list {
		r, ok := n.parseRange(x)
		if !ok {
			return view{}, fmt.Errorf("redis at %v: its CLUSTER SLOTS makes no sense", n)
		}
		v.ranges = append(v.ranges, r)
	}
	return v, nil
}

// parseRange reads [from, to, [host, port, …], …].
func (n *node) parseRange(x any) (r slotRange, ok bool) {
	list, _ := x.([]any)
	if len(list) < 3 {
		return r, false
	}
	from, ok1 := list[0].(int64)
	to, ok2 := list[1].(int64)
	if !ok1 || !ok2 || from < 0 || to < from || to >= slotCount {
		return r, false
	}
	r.from, r.to = int(from), int(to)
	for _, y := range list[2:] {
		one, _ := y.([]any)
		if len(one) < 2 {
			return r, false
		}
		host, _ := one[0].(string) // nil if the node does not know it
		port, ok := one[1].(int64)
		if !ok {
			return r, false
		}
		r.addrs = append(r.addrs, n.addressOf(host, strconv.FormatInt(port, 10)))
	}
	return r, true
}

// apply makes v the map, and closes nodes that have not been in the map for a while.
func (c *cluster) apply(v view) {
	var owner [slotCount]*node
	used := map[string]bool{}
	var masters []*node
	var others []string
	for _, r := range v.ranges {
		n := c.at(r.addrs[0])
		for slot := r.from; slot <= r.to; slot++ {
			owner[slot] = n
		}
		if !used[n.addr] {
			masters = append(masters, n)
		}
		for i, a := range r.addrs {
			if i > 0 && !used[a] {
				others = append(others, a)
			}
			used[a] = true
		}
	}
	holes := 0
	for slot := range owner {
		c.slots[slot].Store(owner[slot])
		if owner[slot] == nil {
			holes++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if holes > 0 && c.holes != holes {
		c.store.log.Warn("no node serves some slots of the redis cluster", zap.Int("slots", holes))
	}
	c.masters, c.others, c.holes = masters, others, holes
	c.tidyLocked(used)
}

// tidyLocked closes unused nodes when no call to them can be in flight any more.
func (c *cluster) tidyLocked(used map[string]bool) {
	now := time.Now()
	for addr, n := range c.nodes {
		since, was := c.unused[addr]
		switch {
		case used[addr]:
			delete(c.unused, addr)
		case !was:
			c.unused[addr] = now
		case now.Sub(since) > 2*c.store.cfg.Timeout+refreshGap && !n.probed.Load():
			_ = n.client.Close()
			delete(c.nodes, addr)
			delete(c.unused, addr)
		}
	}
}
