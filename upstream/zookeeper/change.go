package zookeeper

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
)

const (
	// parentsFor is how long a lock's node is assumed to exist still. Other hosts remove
	// empty ones a minute after they have used them, and servers check once a minute.
	parentsFor = 30 * time.Second
	// busyFor is how long a lock that was held is read before it is tried.
	busyFor = 5 * time.Second
	// remembered bounds what is remembered of locks that we do not hold.
	remembered = 8192
	// attempts bounds the steps of one op that others undo each time.
	attempts = 5
)

// recall says whether key stands in m and is not older than d.
func recall(m map[string]time.Time, key string, d time.Duration) bool {
	at, ok := m[key]
	return ok && time.Since(at) < d
}

func remember(m map[string]time.Time, key string) {
	if len(m) >= remembered {
		clear(m)
	}
	m[key] = time.Now()
}

func (se *session) lately(key string) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	return recall(se.busy, key, busyFor)
}

// makeParents makes the nodes of locks that may not have one. What fails here
// fails again with its op.
func (b *batch) makeParents(writes []write) {
	var first []*lockNode
	b.session.mu.Lock()
	for i := range writes {
		w := &writes[i]
		if w.kind == making && b.firstLocked(w.node) && !recall(b.parents, w.node.parent, parentsFor) {
			first = append(first, w.node)
		}
	}
	b.session.mu.Unlock()
	together(len(first), func(i int) { _ = b.makeParent(b.ctx, first[i]) })
}

// firstLocked says that no other node of ours is known to stand where g is to be.
func (se *session) firstLocked(g *lockNode) bool {
	if g.permit != nil {
		return g.permit.sem.bareLocked()
	}
	return len(se.byKey[g.parent]) == 1
}

// makeParent creates the parent of a lock node: the node of its lock or semaphore.
func (se *session) makeParent(ctx context.Context, g *lockNode) error {
	err := se.makeContainer(ctx, g.parent)
	if err != errGone || g.permit == nil {
		return err
	}
	if err := se.makeContainer(ctx, se.store.cfg.Chroot+"/"+permitsDir); err != nil {
		return err
	}
	return se.makeContainer(ctx, g.parent)
}

// request is the write as an operation of a transaction.
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

// stamp is the operation whose answer says what the transaction's id was.
func (b *batch) stamp() any {
	return &zk.SetDataRequest{Path: b.self, Data: []byte(b.store.host), Version: -1}
}

// transact carries out writes in one transaction, and each of further in another.
func (b *batch) transact(writes []write, further [][]*write) {
	if len(further) == 0 {
		b.transaction(refs(writes))
		return
	}
	rounds := append([][]*write{refs(writes)}, further...)
	together(len(rounds), func(i int) { b.transaction(rounds[i]) })
}

// transaction carries out writes together; where it fails for one of them, each goes
// in one of its own.
func (b *batch) transaction(ws []*write) {
	if b.carryOut(b.ctx, ws) != nil {
		b.oneByOne(ws)
	}
}

func refs(writes []write) []*write {
	ws := make([]*write, len(writes))
	for i := range ws {
		ws[i] = &writes[i]
	}
	return ws
}

// carryOut carries out writes in one transaction. On an error, each has it.
func (b *batch) carryOut(ctx context.Context, ws []*write) error {
	ops := make([]any, 0, len(ws)+1)
	for _, w := range ws {
		ops = append(ops, b.request(w))
	}
	res, err := b.multi(ctx, append(ops, b.stamp())...)
	if err == nil && (len(res) != len(ws)+1 || res[len(ws)].Stat == nil) {
		err = fmt.Errorf("%w: the answer makes no sense", ErrNoAnswer)
	}
	for i, w := range ws {
		if w.err = err; err == nil {
			w.zxid, w.name = res[len(ws)].Stat.Mzxid, res[i].String
		}
	}
	if len(res) == len(ws)+1 && res[len(ws)].Error == errGone {
		return errNoSelf
	}
	return err
}

var errNoSelf = fmt.Errorf("the session's own node: %w", zk.ErrNoNode)

// oneByOne carries out the writes of a transaction that has failed as a whole one by
// one, unless it may have happened.
func (b *batch) oneByOne(ws []*write) {
	if judge(ws[0].err) != refused {
		return
	}
	together(len(ws), func(i int) { b.alone(ws[i]) })
}

// alone carries out one write, and makes what is missing for it.
func (b *batch) alone(w *write) {
	for range attempts {
		err := b.carryOut(b.ctx, []*write{w})
		switch {
		case err == errNoSelf:
			err = b.makeSelf(b.ctx)
		case err == errGone && w.kind == making:
			err = b.makeParent(b.ctx, w.node)
		default:
			return
		}
		if err != nil {
			if judge(err) != refused { // the making itself was refused before
				err = fmt.Errorf("%w: %w", ErrNothingSent, err)
			}
			w.err = err
			return
		}
	}
	w.err = fmt.Errorf("%w: others undo each step at once", ErrNothingSent)
}

// wrote follows how a write has ended.
func (b *batch) wrote(w *write) {
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
			b.keeps = append(b.keeps, w.i)
		case w.err == errGone:
			b.session.mu.Lock()
			b.goneLocked(w.node)
			b.session.mu.Unlock()
			b.end(w.i, cache.NotHeld, nil)
		default:
			if judge(w.err) == unknown { // it may be shared: then it is not exclusive
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
		if judge(w.err) != unknown {
			b.remove(w.node)
		}
		b.fail(w.i, w.err, true)
		b.drop(w.look)
		return
	}
	parse := parseNode
	if w.node.permit != nil {
		parse = parsePermit
	}
	n, ok := parse(w.name[strings.LastIndexByte(w.name, '/')+1:])
	if !ok {
		b.fail(w.i, fmt.Errorf("%w: it made a node %q", ErrNoAnswer, w.name), true)
		b.drop(w.look)
		return
	}
	b.named(w.node, n, w.zxid)
	b.session.mu.Lock()
	remember(b.parents, w.node.parent)
	b.session.mu.Unlock()
}

func (b *batch) deleted(w *write) {
	op := &b.ops[w.i]
	switch {
	case w.err == nil:
		b.remove(w.node)
		b.session.mu.Lock()
		remember(b.parents, w.node.parent)
		b.session.mu.Unlock()
		b.end(w.i, cache.Done, nil)
	case w.err == errGone:
		b.remove(w.node)
		b.end(w.i, cache.NotHeld, nil)
		if op.Kind == cache.OpWithdraw {
			b.end(w.i, cache.Done, nil)
		}
	default:
		if judge(w.err) != unknown {
			b.session.leave(w.node, false)
		}
		b.fail(w.i, w.err, true)
	}
}
