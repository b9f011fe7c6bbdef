package zookeeper

import (
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// decide says of each acquire whether it is granted.
func (b *batch) decide() {
	if len(b.looks) == 0 && len(b.turns) == 0 {
		return
	}
	looks := b.looks
	for _, t := range b.turns {
		looks = append(looks, t.looks...)
	}
	if !b.sure(looks) {
		return
	}
	locks := len(b.looks)
	together(locks+len(b.turns), func(i int) {
		if i < locks {
			b.decideOne(b.looks[i])
		} else {
			b.decideTurn(b.turns[i-locks])
		}
	})
	for _, l := range looks { // not from several goroutines
		if r := &b.results[l.i]; r.Err != nil && b.err == nil {
			b.err = r.Err
		}
		if b.results[l.i].Status == cache.Busy && l.node != nil {
			b.leaves = append(b.leaves, l)
		}
	}
}

// sure makes sure that the session is confirmed on this connection.
func (b *batch) sure(looks []*look) bool {
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
	for _, l := range looks {
		b.fail(l.i, err, l.fresh)
	}
	return false
}

// set gives op i its result; it touches nothing else, for goroutines.
func (b *batch) set(i int, r upstream.Result) {
	r.Left = -1
	b.results[i] = r
}

func (b *batch) bad(l *look, err error) {
	st := cache.Refused
	if l.fresh {
		st = cache.Unknown // its node stands
	}
	b.set(l.i, upstream.Result{Status: st, Err: b.store.cfg.explain(err)})
}

func (b *batch) decideOne(l *look) {
	for range attempts {
		if l.err != nil {
			b.bad(l, l.err)
			return
		}
		at := place(l.queue, b.id, l.op.Token)
		if at < 0 {
			b.vanished(l)
			return
		}
		if b.cross(l) {
			return
		}
		if b.noFence(l) {
			b.outOfRange(l)
			return
		}
		b.stale(l, at)
		before, unsure := blocker(l.queue, at, l.node.mode)
		if before < 0 {
			b.grant(l, at)
			return
		}
		join := l.op.Kind == cache.OpJoin
		if !join && !unsure {
			b.busyNow(l)
			return
		}
		path := l.node.parent + "/" + l.queue[before].name
		if join && b.waitsFor(l.node, path) {
			b.queued(l)
			return
		}
		data, err := b.wait(l.node, path, join)
		switch {
		case err == errGone:
			b.read(l)
			continue
		case err != nil:
			b.bad(l, err)
		case unsure && dataShared(data):
			b.grant(l, at)
		case join:
			b.queued(l)
		default:
			b.busyNow(l)
		}
		return
	}
	if l.op.Kind == cache.OpJoin { // it changes faster than we look
		b.queued(l)
		b.store.hint(cache.HintAvailable, l.op.Key)
		return
	}
	b.busyNow(l)
}

// wait reads the node before ours, and for one that waits watches it.
func (b *batch) wait(g *lockNode, path string, watch bool) ([]byte, error) {
	if watch {
		b.waitFor(g, path)
	}
	data, err := call(b.ctx, b.session, false, func(c *zk.Conn) ([]byte, error) {
		if watch {
			b.watching.Store(true)
			data, _, _, err := c.GetW(path)
			return data, err
		}
		data, _, err := c.Get(path)
		return data, err
	})
	if err != nil && watch {
		b.waitFor(g, "")
	}
	return data, err
}

// vanished is for an acquire whose node is not there: somebody has deleted it. A
// repetition makes a new one.
func (b *batch) vanished(l *look) {
	b.session.mu.Lock()
	held := l.node.held
	b.goneLocked(l.node)
	b.session.mu.Unlock()
	if !held {
		b.remove(l.node)
	}
	b.set(l.i, upstream.Result{Status: cache.Refused, Err: fmt.Errorf("%w, %s: the node was deleted by somebody else",
		ErrRefused, b.store.cfg.where())})
}

// cross answers one that asks for another mode than its token has.
func (b *batch) cross(l *look) bool {
	if l.op.Mode == l.node.mode || l.node.mode == cache.Exclusive {
		return false // exclusive is shared enough
	}
	if l.op.Kind == cache.OpJoin {
		b.queued(l)
	} else {
		b.set(l.i, upstream.Result{Status: cache.Busy})
		l.node = nil // it stays
	}
	return true
}

// stale deletes further nodes with our token, which a request that came twice
// could have made. The first counts.
func (b *batch) stale(l *look, at int) {
	for i := at + 1; i < len(l.queue); i++ {
		if n := l.queue[i]; n.ours && n.sid == b.id && n.token == l.op.Token {
			path := l.node.parent + "/" + n.name
			_, _ = call(b.ctx, b.session, true, func(c *zk.Conn) (any, error) { return nil, c.Delete(path, -1) })
		}
	}
}

// grant grants, if the session still stands.
func (b *batch) grant(l *look, at int) {
	g := l.node
	until, live := b.stand()
	if !live {
		b.bad(l, fmt.Errorf("%w: the session was not confirmed in time", ErrNoAnswer))
		return
	}
	others, _ := wanted(l.queue, at, g.mode, b.id)
	b.hold(g, others)
	b.session.mu.Lock()
	delete(b.busy, g.key)
	b.session.mu.Unlock()
	b.set(l.i, upstream.Result{Status: cache.Granted, Base: g.base, Contended: others, Session: until, SessionNo: b.no})
}

// noFence reports whether a node's czxid cannot be a fence: it is out of range, or not above the
// floor. A lease that is already held keeps its fence.
func (b *batch) noFence(l *look) bool {
	b.session.mu.Lock()
	defer b.session.mu.Unlock()
	g := l.node
	return g.base == 0 || g.base > cache.MaxBase || !g.held && g.base <= l.op.Floor
}

// outOfRange deletes a node that cannot give a fence, and refuses its op.
func (b *batch) outOfRange(l *look) {
	path := l.node.path()
	_, err := call(b.ctx, b.session, true, func(c *zk.Conn) (any, error) { return nil, c.Delete(path, -1) })
	if err != nil && err != errGone {
		b.bad(l, err)
		return
	}
	b.remove(l.node)
	where, base, floor := b.store.cfg.where(), l.node.base, l.op.Floor
	err = fmt.Errorf("%w, %s: transaction id %d is out of range for a fence", ErrRefused, where, base)
	if base <= floor {
		err = fmt.Errorf("%w, %s: transaction id %d is not above the last fence base %d (raise fence_epoch)",
			ErrRefused, where, base, floor)
	}
	b.set(l.i, upstream.Result{Status: cache.Refused, Err: err})
}

func (b *batch) queued(l *look) {
	b.session.mu.Lock()
	l.node.watched = false
	until := b.until
	b.session.mu.Unlock()
	b.set(l.i, upstream.Result{Status: cache.Queued, Session: until, SessionNo: b.no})
}

func (b *batch) busyNow(l *look) {
	b.session.mu.Lock()
	remember(b.busy, l.op.Key)
	b.session.mu.Unlock()
	b.set(l.i, upstream.Result{Status: cache.Busy})
}

// giveUp takes back the nodes of tries that found the lock held.
func (b *batch) giveUp() {
	if len(b.leaves) == 0 {
		return
	}
	ws := make([]*write, len(b.leaves))
	for i, l := range b.leaves {
		ws[i] = &write{i: l.i, kind: deleting, node: l.node}
	}
	if err := b.carryOut(b.ctx, ws); judge(err) == refused {
		together(len(ws), func(i int) { b.alone(ws[i]) })
	}
	for _, w := range ws {
		switch {
		case w.err == nil || w.err == errGone:
			b.remove(w.node)
		default:
			b.end(w.i, cache.Unknown, b.store.cfg.explain(fmt.Errorf("%w: %w", ErrNoAnswer, w.err)))
		}
	}
}

// keep answers renewals and downgrades. Once the quorum has confirmed the session,
// every change that came before has been told to us: only locks that have changed
// have to be read.
func (b *batch) keep() {
	if len(b.keeps) == 0 {
		return
	}
	if err := b.confirmUnless(len(b.writes) > 0); err != nil {
		for _, i := range b.keeps {
			b.fail(i, err, b.ops[i].Kind == cache.OpDowngrade)
		}
		return
	}
	of := b.lookForKeeps()
	errs := make([]error, len(b.keeps))
	together(len(b.keeps), func(k int) {
		g := b.lockNode(idOf(&b.ops[b.keeps[k]]))
		switch {
		case g == nil:
		case g.permit != nil:
			errs[k] = of[g.permit.sem]
		case b.soiled(g):
			errs[k] = b.look(b.ctx, g)
		}
	})
	until, live := b.stand()
	for k, i := range b.keeps {
		g := b.lockNode(idOf(&b.ops[i]))
		switch {
		case errs[k] != nil:
			b.fail(i, errs[k], b.ops[i].Kind == cache.OpDowngrade)
		case g == nil || !b.holds(g):
			b.end(i, cache.NotHeld, nil)
		case !live:
			b.fail(i, fmt.Errorf("%w: the session was not confirmed in time", ErrNoAnswer), true)
		default:
			b.set(i, upstream.Result{Status: cache.Done, Contended: b.wantedNow(g), Session: until, SessionNo: b.no})
		}
	}
}

// confirmUnless confirms the session, unless a transaction of this batch has.
func (b *batch) confirmUnless(done bool) error {
	if done {
		return nil
	}
	return b.confirm(b.ctx)
}

func (se *session) soiled(g *lockNode) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	_, dirty := se.dirty[g]
	return dirty || !g.watched
}

func (se *session) wantedNow(g *lockNode) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	if g.permit != nil {
		return g.permit.sem.wanted
	}
	return g.contended
}
