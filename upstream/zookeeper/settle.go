package zookeeper

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
)

// settle finds out what became of nodes whose making was never answered, for ops
// that are about them.
func (b *batch) settle() {
	var open []*lockNode
	for i := range b.ops {
		if g := b.lockNode(idOf(&b.ops[i])); g != nil && g.name == "" && b.ops[i].Kind != cache.OpRenew {
			open = append(open, g)
		}
	}
	if len(open) == 0 {
		return
	}
	// A write that nobody waits for any more has ended before what is asked now, or
	// is not sure to.
	if b.adrift.Load() > 0 || b.confirm(b.ctx) != nil {
		return
	}
	of := map[string][]*lockNode{} // by the lock or semaphore
	for _, g := range open {
		of[g.parent] = append(of[g.parent], g)
	}
	groups := slices.Collect(maps.Values(of))
	together(len(groups), func(i int) { _ = b.find(b.ctx, groups[i]...) })
}

// find looks up the nodes of lock nodes of one lock, or of one semaphore, at the server. A request that was sent before
// the last confirmation has been carried out by now, or never will be.
func (se *session) find(ctx context.Context, gs ...*lockNode) error {
	read := se.queue
	if gs[0].permit != nil {
		read = se.permits
	}
	q, err := read(ctx, gs[0].parent, false)
	if err != nil {
		return err
	}
	errs := make([]error, len(gs))
	together(len(gs), func(i int) { errs[i] = se.findIn(ctx, gs[i], q) })
	return errors.Join(errs...)
}

func (se *session) findIn(ctx context.Context, g *lockNode, q []node) error {
	at := place(q, se.id, g.token)
	if at < 0 {
		se.remove(g)
		return nil
	}
	path := g.parent + "/" + q[at].name
	stat, err := call(ctx, se, false, func(c *zk.Conn) (*zk.Stat, error) {
		_, stat, err := c.Get(path)
		return stat, err
	})
	if err == errGone {
		se.remove(g)
		return nil
	}
	if err == nil {
		se.named(g, q[at], stat.Czxid)
	}
	return err
}

// named sets the name of a lock node whose node has been found.
func (se *session) named(g *lockNode, n node, czxid int64) {
	se.mu.Lock()
	defer se.mu.Unlock()
	g.name, g.seq, g.base = n.name, n.seq, uint64(czxid)
	if p := g.permit; p != nil {
		p.born = p.sem.readings
	}
}
