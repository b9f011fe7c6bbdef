package zookeeper

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

const (
	// parentsFor is how long the node of a lock is assumed to exist. Other hosts remove empty nodes a
	// minute after they have used them, and servers check once a minute.
	parentsFor = 30 * time.Second
	// busyFor is how long a try of a lock that was held, or of a semaphore that was full, reads
	// it before it makes a node.
	busyFor = 5 * time.Second
	// attempts limits the repetitions of a step that other clients undo each time.
	attempts = 5
)

// makeParents makes the nodes of locks and semaphores that may not exist. An error here is not
// kept, because the transaction will fail too.
func (b *batch) makeParents(writes []*write) {
	var first []*lockNode
	b.session.mu.Lock()
	for _, w := range writes {
		if w.kind == making && b.firstLocked(w.node) && !b.parents.has(w.node.parent) {
			first = append(first, w.node)
		}
	}
	b.session.mu.Unlock()
	together(len(first), func(i int) { _ = b.makeParent(b.ctx, first[i]) })
}

// firstLocked reports whether g is the only known node of this session below its parent.
func (se *session) firstLocked(g *lockNode) bool {
	if g.permit != nil {
		return g.permit.sem.bareLocked()
	}
	return len(se.byKey[g.parent]) == 1
}

// makeParent creates the parent of a lock node: the node of its lock or semaphore.
func (se *session) makeParent(ctx context.Context, g *lockNode) error {
	err := se.makeContainer(ctx, g.parent)
	if err != errNoNode || g.permit == nil {
		return err
	}
	if err := se.makeContainer(ctx, se.store.cfg.Chroot+"/"+permitsDir); err != nil {
		return err
	}
	return se.makeContainer(ctx, g.parent)
}

// request returns w as an operation of a transaction.
func (b *batch) request(w *write) any {
	g := w.node
	switch w.kind {
	case making:
		name := ""
		if g.permit != nil {
			name = newPermitName(b.id, g.token, g.permit.limit, g.try)
		} else {
			name = newName(b.id, g.token, g.mode, g.try)
		}
		return &zk.CreateRequest{Path: g.parent + "/" + name,
			Data: nodeData(g.mode, b.store.host), Acl: b.store.acl, Flags: zk.FlagEphemeralSequential}
	case sharing:
		return &zk.SetDataRequest{Path: g.path(), Data: nodeData(cache.Shared, b.store.host), Version: -1}
	}
	return &zk.DeleteRequest{Path: g.path(), Version: -1}
}

// stampedMulti carries out a transaction that also writes the session's own node. The answer to
// that write, which is the last one, has the id of the transaction. It also shows whether the
// server has lost data. Then the session is over.
func (se *session) stampedMulti(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	high, before := se.store.high.Load(), se.stamped.Load()
	res, err := se.multi(ctx, append(ops,
		&zk.SetDataRequest{Path: se.self, Data: []byte(se.store.host), Version: -1})...)
	if err != nil {
		return res, err
	}
	if len(res) != len(ops)+1 || res[len(ops)].Stat == nil {
		return res, fmt.Errorf("%w: the answer makes no sense", ErrNoAnswer)
	}
	// A server does not resume a session whose client has seen later transactions. But pings and
	// other sessions may have told more than the library knows.
	now := res[len(ops)].Stat
	if err = se.store.checkHistory(now.Mzxid, high); err == nil {
		err = se.checkStamp(now, before)
	}
	if err != nil {
		se.giveUp(err)
	}
	return res, err
}

// transaction carries out writes together. If the server refuses the transaction because of one of
// them, each write gets its own transaction.
func (b *batch) transaction(ws []*write) {
	if outcome(b.carryOut(ws)) == driverkit.Refused {
		together(len(ws), func(i int) { b.carryOutAlone(ws[i]) })
	}
}

// carryOut carries out writes in one transaction. An error is set in each of them.
func (b *batch) carryOut(ws []*write) error {
	ops := make([]any, 0, len(ws)+1)
	for _, w := range ws {
		ops = append(ops, b.request(w))
	}
	res, err := b.stampedMulti(b.ctx, ops)
	for i, w := range ws {
		if w.err = err; err == nil {
			w.zxid, w.name = res[len(ws)].Stat.Mzxid, res[i].String
		}
	}
	if len(res) == len(ws)+1 && res[len(ws)].Error == errNoNode {
		return errNoSelf
	}
	return err
}

// errNotConfirmed means that the session's deadline passed before an answer came.
var errNotConfirmed = fmt.Errorf("%w: the session was not confirmed in time", ErrNoAnswer)

// errUnresolved means that an earlier request for the node has not been resolved.
var errUnresolved = fmt.Errorf("%w: the outcome of an earlier request is not known", ErrNoAnswer)

// errNoSelf means that the session's own node does not exist.
var errNoSelf = fmt.Errorf("the session's own node: %w", zk.ErrNoNode)

// carryOutAlone carries out one write, and makes the nodes that are missing for it.
func (b *batch) carryOutAlone(w *write) {
	for range attempts {
		err := b.carryOut([]*write{w})
		switch {
		case err == errNoSelf:
			err = b.makeSelf(b.ctx)
		case err == errNoNode && w.kind == making:
			err = b.makeParent(b.ctx, w.node)
		default:
			return
		}
		if err != nil {
			if outcome(err) != driverkit.Refused { // the refused write has changed nothing, either
				err = fmt.Errorf("%w: %w", ErrNothingSent, err)
			}
			w.err = err
			return
		}
	}
	w.err = fmt.Errorf("%w: others undo each step at once", ErrNothingSent)
}

// written handles the outcome of a write.
func (b *batch) written(w *write) {
	switch w.kind {
	case making:
		b.made(w)
	case deleting:
		b.deleted(w)
	case sharing:
		switch {
		case w.err == nil:
			b.session.mu.Lock()
			w.node.mode = cache.Shared
			b.session.mu.Unlock()
			b.renewals = append(b.renewals, w.i)
		case w.err == errNoNode:
			b.session.mu.Lock()
			b.nodeDeletedLocked(w.node)
			b.session.mu.Unlock()
			b.end(w.i, cache.NotHeld, nil)
		default:
			if outcome(w.err) == driverkit.Unknown {
				// The node may be shared by now, so it no longer counts as exclusive.
				b.session.mu.Lock()
				w.node.mode = cache.Shared
				b.session.mu.Unlock()
			}
			b.fail(w.i, w.err, true)
		}
	}
}

func (b *batch) made(w *write) {
	if w.err != nil {
		if outcome(w.err) != driverkit.Unknown {
			b.remove(w.node)
		}
		b.fail(w.i, w.err, true)
		b.drop(w.acquire)
		return
	}
	parse := parseNode
	if w.node.permit != nil {
		parse = parsePermit
	}
	n, ok := parse(w.name[strings.LastIndexByte(w.name, '/')+1:])
	if !ok {
		b.fail(w.i, fmt.Errorf("%w: it made a node %q", ErrNoAnswer, w.name), true)
		b.drop(w.acquire)
		return
	}
	b.named(w.node, n, w.zxid)
	b.parents.add(w.node.parent)
}

func (b *batch) deleted(w *write) {
	switch {
	case w.err == nil:
		b.remove(w.node)
		b.parents.add(w.node.parent)
		b.end(w.i, cache.Done, nil)
	case w.err == errNoNode:
		b.remove(w.node)
		b.endAbsent(w.i)
	default:
		if outcome(w.err) != driverkit.Unknown {
			b.session.leave(w.node, false)
		}
		b.fail(w.i, w.err, true)
	}
}
