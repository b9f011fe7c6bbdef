package zookeeper

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// peek answers who holds a key, as far as this server knows.
func (b *batch) peek() {
	together(len(b.peeks), func(k int) { b.peekOne(b.peeks[k]) })
	for _, i := range b.peeks {
		if b.err == nil {
			b.err = b.results[i].Err
		}
	}
}

func (b *batch) peekOne(i int) {
	if b.ops[i].Mode == cache.Permit {
		b.peekPermits(i)
		return
	}
	parent := b.store.parentOf(b.ops[i].Key)
	q, err := b.queue(b.ctx, parent, false)
	r := upstream.Result{Status: cache.Done}
	if err == nil && len(q) > 0 {
		r.Status = cache.Busy
		var shared bool
		if shared, err = b.isShared(b.ctx, parent, q[0]); shared {
			r.Mode = cache.Shared
		}
	}
	if err != nil {
		r = upstream.Result{Status: cache.Refused, Err: b.store.cfg.explain(err)}
	}
	b.set(i, r)
}

// isShared says whether the first of a queue is a reader's.
func (se *session) isShared(ctx context.Context, parent string, n node) (bool, error) {
	if !n.ours || n.shared {
		return n.shared, nil
	}
	data, err := call(ctx, se, false, func(c *zk.Conn) ([]byte, error) {
		data, _, err := c.Get(parent + "/" + n.name)
		return data, err
	})
	if err == errGone { // it has just gone
		return false, nil
	}
	return dataShared(data), err
}

// peekPermits answers whether anybody has a permit, as far as this server knows.
func (b *batch) peekPermits(i int) {
	q, err := b.permits(b.ctx, b.store.permitsOf(b.ops[i].Key), false)
	r := upstream.Result{Status: cache.Done, Mode: cache.Permit}
	switch {
	case err != nil:
		r = upstream.Result{Status: cache.Refused, Err: b.store.cfg.explain(err)}
	case len(q) > 0:
		r.Status = cache.Busy
	}
	b.set(i, r)
}
