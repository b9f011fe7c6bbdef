package zookeeper

import (
	"context"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// peek answers whether keys are held, as far as this server knows.
func (b *batch) peek() {
	together(len(b.peeks), func(k int) { b.peekOne(b.peeks[k]) })
}

func (b *batch) peekOne(i int) {
	r := upstream.Result{Status: cache.Done}
	var q []node
	var err error
	if b.ops[i].Mode == cache.Permit {
		r.Mode = cache.Permit
		q, err = b.permits(b.ctx, b.store.permitsOf(b.ops[i].Key))
	} else {
		parent, shared := b.store.parentOf(b.ops[i].Key), false
		if q, err = b.queue(b.ctx, parent, false); err == nil && len(q) > 0 {
			shared, err = b.isShared(b.ctx, parent, q[0])
		}
		if shared {
			r.Mode = cache.Shared
		}
	}
	if err != nil {
		b.fail(i, err, false)
		return
	}
	if len(q) > 0 {
		r.Status = cache.Busy
	}
	b.answer(i, r)
}

// isShared reports whether the first node of a queue is shared.
func (se *session) isShared(ctx context.Context, parent string, n node) (bool, error) {
	if !n.ours || n.shared {
		return n.shared, nil
	}
	first, err := se.get(ctx, parent+"/"+n.name, false)
	if err == errNoNode { // it has just been deleted
		return false, nil
	}
	return dataShared(first.data), err
}
