package zookeeper

import (
	"fmt"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// decide answers the acquires.
func (b *batch) decide() {
	if len(b.acquires) == 0 && len(b.semaphores) == 0 {
		return
	}
	acquires := b.acquires
	for _, t := range b.semaphores {
		acquires = append(acquires, t.acquires...)
	}
	if !b.ensureConfirmed(acquires) {
		return
	}
	locks := len(b.acquires)
	together(locks+len(b.semaphores), func(i int) {
		if i < locks {
			b.decideOne(b.acquires[i])
		} else {
			b.decideSemaphore(b.semaphores[i-locks])
		}
	})
	for _, l := range acquires {
		if b.results[l.i].Status == cache.Busy && l.node != nil {
			b.rejected = append(b.rejected, l)
		}
	}
}

// ensureConfirmed confirms the session on this connection, unless that has been done. Otherwise
// it answers the acquires and returns false.
func (b *batch) ensureConfirmed(acquires []*acquire) bool {
	b.session.mu.Lock()
	w := b.wire
	b.session.mu.Unlock()
	if w.confirmed.Load() {
		return true
	}
	err := b.confirm(b.ctx)
	if err == nil {
		return true
	}
	for _, l := range acquires {
		b.fail(l.i, err, l.fresh)
	}
	return false
}

func (b *batch) failAcquire(l *acquire, err error) {
	st := cache.Refused
	if l.fresh {
		st = cache.Unknown // its node exists
	}
	b.end(l.i, st, b.store.cfg.explain(err))
}

func (b *batch) decideOne(l *acquire) {
	for range attempts {
		if b.decideByQueue(l) {
			return
		}
		b.read(l)
	}
	if l.op.Kind == cache.OpJoin { // the lock changes faster than it can be read
		b.queued(l, false)
		b.store.hint(cache.HintAvailable, l.node)
		return
	}
	b.busyNow(l)
}

// decideByQueue answers an acquire by the queue that has been read. It returns false if the queue
// has to be read again, because the node before ours has been deleted since.
func (b *batch) decideByQueue(l *acquire) bool {
	if l.err != nil {
		b.failAcquire(l, l.err)
		return true
	}
	at := place(l.queue, b.id, l.op.Token)
	switch {
	case at < 0:
		b.vanished(l)
		return true
	case b.answerOtherMode(l):
		return true
	case b.noFence(l):
		b.outOfRange(l)
		return true
	}
	b.deleteDuplicates(l, at)
	before, unsure := blocker(l.queue, at, l.node.mode)
	if before < 0 {
		b.grant(l, at)
		return true
	}
	join := l.op.Kind == cache.OpJoin
	if !join && !unsure {
		b.busyNow(l)
		return true
	}
	path := l.node.parent + "/" + l.queue[before].name
	if join && b.waitsFor(l.node, path) {
		b.queued(l, false)
		return true
	}
	data, err := b.wait(l.node, path, join)
	switch {
	case err == errNoNode:
		return false
	case err != nil:
		b.failAcquire(l, err)
	case unsure && dataShared(data):
		b.grant(l, at)
	case join:
		b.queued(l, false)
	default:
		b.busyNow(l)
	}
	return true
}

// wait reads the node before ours. For an acquire that waits, it also watches it.
func (b *batch) wait(g *lockNode, path string, watch bool) ([]byte, error) {
	if watch {
		b.waitFor(g, path)
	}
	n, err := b.get(b.ctx, path, watch)
	if err != nil && watch {
		b.waitFor(g, "")
	}
	return n.data, err
}

// vanished answers an acquire whose node another client has deleted. A repetition makes a new
// one.
func (b *batch) vanished(l *acquire) {
	b.session.mu.Lock()
	held := l.node.held
	b.nodeDeletedLocked(l.node)
	b.session.mu.Unlock()
	if !held {
		b.remove(l.node)
	}
	b.end(l.i, cache.Refused, fmt.Errorf("%w, %s: the node was deleted by another client",
		ErrRefused, b.store.cfg.where()))
}

// answerOtherMode answers an acquire in another mode than its token has.
func (b *batch) answerOtherMode(l *acquire) bool {
	if l.op.Mode == l.node.mode {
		return false
	}
	if l.op.Kind == cache.OpJoin {
		b.queued(l, false)
	} else {
		b.end(l.i, cache.Busy, nil)
		l.node = nil // keep the node
	}
	return true
}

// deleteDuplicates deletes further nodes with our token. A request that was carried out twice may
// have made them. The first node counts.
func (b *batch) deleteDuplicates(l *acquire, at int) {
	for i := at + 1; i < len(l.queue); i++ {
		if n := l.queue[i]; n.ours && n.sid == b.id && n.token == l.op.Token {
			_ = b.delete(b.ctx, l.node.parent+"/"+n.name, -1, true)
		}
	}
}

// grant grants the lock, if the session's deadline has not passed.
func (b *batch) grant(l *acquire, at int) {
	g := l.node
	until, live := b.deadline()
	if !live {
		b.failAcquire(l, errNotConfirmed)
		return
	}
	others, _ := contention(l.queue, at, g.mode, b.id)
	b.hold(g, others)
	b.granted(l, others, until)
}

// noFence reports whether a node's czxid cannot be a fence: it is out of range, or not above the
// floor. A lease that is already held keeps its fence.
func (b *batch) noFence(l *acquire) bool {
	b.session.mu.Lock()
	defer b.session.mu.Unlock()
	g := l.node
	return g.base == 0 || g.base > cache.MaxBase || !g.held && g.base <= l.op.Floor
}

// outOfRange deletes a node that cannot give a fence, and refuses its op.
func (b *batch) outOfRange(l *acquire) {
	err := b.delete(b.ctx, l.node.path(), -1, true)
	if err != nil && err != errNoNode {
		b.failAcquire(l, err)
		return
	}
	b.remove(l.node)
	where, base, floor := b.store.cfg.where(), l.node.base, l.op.Floor
	err = fmt.Errorf("%w, %s: transaction id %d is out of range for a fence",
		ErrRefused, where, base)
	if base <= floor {
		err = fmt.Errorf("%w, %s: transaction id %d is not above the last fence base %d "+
			"(raise fence_epoch)", ErrRefused, where, base, floor)
	}
	b.end(l.i, cache.Refused, err)
}

func (b *batch) queued(l *acquire, contended bool) {
	b.session.mu.Lock()
	l.node.watched = false
	until := b.until
	b.session.mu.Unlock()
	b.answer(l.i, upstream.Result{Status: cache.Queued, Contended: contended,
		Session: until, SessionNo: b.no})
}

// granted answers an acquire that is granted. until is the session's deadline.
func (b *batch) granted(l *acquire, contended bool, until int64) {
	b.busy.remove(l.node.parent)
	b.answer(l.i, upstream.Result{Status: cache.Granted, Base: l.node.base, Contended: contended,
		Session: until, SessionNo: b.no})
}

func (b *batch) busyNow(l *acquire) {
	b.busy.add(l.node.parent)
	b.end(l.i, cache.Busy, nil)
}

// deleteRejected deletes the nodes of tries that found the lock held.
func (b *batch) deleteRejected() {
	if len(b.rejected) == 0 {
		return
	}
	ws := make([]*write, len(b.rejected))
	for i, l := range b.rejected {
		ws[i] = &write{i: l.i, kind: deleting, node: l.node}
	}
	b.transaction(ws)
	for _, w := range ws {
		switch {
		case w.err == nil || w.err == errNoNode:
			b.remove(w.node)
		default:
			b.end(w.i, cache.Unknown, b.store.cfg.explain(fmt.Errorf("%w: %w", ErrNoAnswer, w.err)))
		}
	}
}
