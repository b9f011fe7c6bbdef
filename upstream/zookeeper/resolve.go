package zookeeper

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

// resolve finds out whether the nodes of the batch's ops exist whose making was never answered.
func (b *batch) resolve() {
	var open []*lockNode
	for i := range b.ops {
		if g := b.lockNode(idOf(&b.ops[i])); g != nil && b.ops[i].Kind != cache.OpRenew {
			open = append(open, g)
		}
	}
	_ = b.find(b.ctx, open) // without an answer the nodes remain unresolved
}

// find looks up, at the server, the nodes that have no name yet.
func (se *session) find(ctx context.Context, nodes []*lockNode) error {
	of := map[string][]*lockNode{} // by the lock or semaphore
	se.mu.Lock()
	for _, g := range nodes {
		if g.name == "" {
			of[g.parent] = append(of[g.parent], g)
		}
	}
	se.mu.Unlock()
	// While an abandoned write may still go out, nothing can be concluded. Any other write that
	// was sent before the confirmation has been carried out by then, or never will be.
	if len(of) == 0 || se.abandoned.Load() > 0 {
		return nil
	}
	if err := se.confirm(ctx); err != nil {
		return err
	}
	groups := slices.Collect(maps.Values(of))
	_, errs := each(groups, func(gs []*lockNode) (any, error) { return nil, se.findBelow(ctx, gs) })
	return cmp.Or(errs...)
}

// findBelow looks up the nodes of one lock or semaphore.
func (se *session) findBelow(ctx context.Context, gs []*lockNode) error {
	var q []node
	var err error
	if gs[0].permit != nil {
		q, err = se.permits(ctx, gs[0].parent)
	} else {
		q, err = se.queue(ctx, gs[0].parent, false)
	}
	if err != nil {
		return err
	}
	_, errs := each(gs, func(g *lockNode) (any, error) { return nil, se.findIn(ctx, g, q) })
	return cmp.Or(errs...)
}

func (se *session) findIn(ctx context.Context, g *lockNode, q []node) error {
	at := place(q, se.id, g.token)
	if at < 0 {
		se.remove(g)
		return nil
	}
	n, err := se.get(ctx, g.parent+"/"+q[at].name, false)
	if err == errNoNode {
		se.remove(g)
		return nil
	}
	if err == nil {
		se.named(g, q[at], n.stat.Czxid)
	}
	return err
}

// named sets the name of a lock node whose node has been found or made.
func (se *session) named(g *lockNode, n node, czxid int64) {
	se.mu.Lock()
	defer se.mu.Unlock()
	g.name, g.seq, g.base = n.name, n.seq, uint64(czxid)
	if p := g.permit; p != nil {
		p.firstReading = p.sem.readings
	}
}
