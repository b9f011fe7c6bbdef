package zookeeper

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
)

const (
	// checkInterval is how often a lock that changes all the time is checked.
	checkInterval = 100 * time.Millisecond
	// maxChecks limits the locks that are checked concurrently.
	maxChecks = 64
)

// watch checks the held locks that have changed: whether our node still exists, and whether
// another host waits. It ends with ctx.
func (s *Store) watch(ctx context.Context) {
	repeat(ctx, s.toCheck, time.Hour, func() time.Duration { return s.checkRound(ctx) })
}

// wakeWatch wakes watch before its timer.
func (s *Store) wakeWatch() { signal(s.toCheck) }

// checkRound carries out the checks that are due. It returns the time until more are due, or 0 if
// none are known.
func (s *Store) checkRound(ctx context.Context) time.Duration {
	se := s.current()
	if se == nil {
		return 0
	}
	se.watchQuestions()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	jobs, wait := se.due()
	together(len(jobs), func(i int) { jobs[i](ctx) })
	if len(jobs) >= maxChecks {
		return time.Millisecond
	}
	return wait
}

// sooner returns the shorter of two pauses. 0 means none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// due returns the checks that are due now, and the time until more are due, or 0 if none are known.
func (se *session) due() (jobs []func(context.Context), wait time.Duration) {
	now := time.Now()
	se.mu.Lock()
	defer se.mu.Unlock()
	if !se.ready || se.over { // the next connection wakes watch
		return nil, 0
	}
	for g := range se.dirty {
		left := checkInterval - now.Sub(g.checked)
		switch {
		case !g.held || g.leaving:
		case left > 0:
			wait = sooner(wait, left)
		case len(jobs) < maxChecks:
			jobs = append(jobs, func(ctx context.Context) {
				if se.check(ctx, g) != nil {
					se.mu.Lock()
					defer se.mu.Unlock()
					se.markDirtyLocked(g)
				}
			})
		}
	}
	permits, later := se.duePermitsLocked(now)
	return append(jobs, permits...), sooner(wait, later)
}

// check reads the children of a held lock, and watches them again. It sees all changes made
// before it was called.
func (se *session) check(ctx context.Context, g *lockNode) error {
	se.mu.Lock()
	delete(se.dirty, g)
	g.watched, g.checked = true, time.Now()
	guard := !g.guarded && g.held
	if guard {
		g.guarded = true
		se.byNode[g.path()] = append(se.byNode[g.path()], g)
	}
	se.mu.Unlock()
	if guard {
		// The children of a contended lock change all the time and are not read each time. But
		// the deletion of our node must be known at once.
		if _, err := se.get(ctx, g.path(), true); err != nil && err != errNoNode {
			se.mu.Lock()
			g.guarded = false
			unlist(se.byNode, g.path(), g)
			se.mu.Unlock()
			return err
		}
	}
	q, err := se.queue(ctx, g.parent, true)
	if err != nil {
		return err
	}
	at := place(q, se.id, g.token)
	se.mu.Lock()
	defer se.mu.Unlock()
	switch {
	case se.lockNodes[g.nodeID] != g || g.leaving:
	case at < 0:
		se.nodeDeletedLocked(g)
	default:
		was := g.contended
		waits, tries := contention(q, at, g.mode, se.id)
		switch g.contended = waits; {
		case waits && !was:
			se.store.hint(cache.HintContended, g)
		case tries:
			se.store.hint(cache.HintTried, g)
		}
	}
	return nil
}

// watchFired handles the event of a watch. The library calls it between two answers, in the order
// in which the server sent all of them.
func (se *session) watchFired(ev zk.Event) {
	if strings.HasPrefix(ev.Path, se.store.asks.dir) {
		se.store.wakeAnswerer()
		return
	}
	switch ev.Type {
	case zk.EventNodeChildrenChanged:
		se.mu.Lock()
		defer se.mu.Unlock()
		se.childrenChangedLocked(ev.Path)
	case zk.EventNodeDeleted, zk.EventNodeDataChanged:
		se.mu.Lock()
		defer se.mu.Unlock()
		for _, g := range slices.Clone(se.byNode[ev.Path]) {
			se.watchedNodeChangedLocked(g, ev)
		}
		// A lock's or semaphore's node is deleted after its children.
		if ev.Type == zk.EventNodeDeleted {
			se.childrenChangedLocked(ev.Path)
		}
		se.watchedPermitChangedLocked(ev.Path)
	}
}

// childrenChangedLocked handles a change of the children of a lock's or semaphore's node.
func (se *session) childrenChangedLocked(path string) {
	for _, g := range se.byKey[path] {
		g.watched = false
		se.markDirtyLocked(g)
	}
	se.permitsChangedLocked(path)
}

func (se *session) watchedNodeChangedLocked(g *lockNode, ev zk.Event) {
	if g.before == ev.Path {
		se.waitForLocked(g, "")
		se.store.hint(cache.HintAvailable, g)
		return
	}
	if g.guarded && ev.Path == g.path() {
		unlist(se.byNode, ev.Path, g)
		g.guarded = false
		if ev.Type == zk.EventNodeDeleted {
			se.nodeDeletedLocked(g)
		}
	}
}

// nodeDeletedLocked notes that the node of a lease has disappeared: another client has deleted
// it. While this store itself deletes the node, its absence means nothing. If that deletion
// fails, leave causes another check of the lock.
func (se *session) nodeDeletedLocked(g *lockNode) {
	if !g.held || g.gone || g.leaving {
		return
	}
	g.gone = true
	// The hint may be lost, so it is repeated with each confirmation until the lease is released.
	se.deleted[g] = struct{}{}
	se.store.log.Warn("another client has deleted the node of a lease: the lease is lost",
		zap.String("node", g.path()))
	se.store.hint(cache.HintGone, g)
}

// markDirtyLocked notes that g's lock has to be checked. Only held locks are checked here; for
// the others, the next acquire reads the queue.
func (se *session) markDirtyLocked(g *lockNode) {
	if g.permit != nil {
		se.markSemaphoreLocked(g.permit.sem, false)
		return
	}
	se.dirty[g] = struct{}{}
	if g.held && !g.leaving {
		se.store.wakeWatch()
	}
}

// reconnectedLocked prepares g for a new connection, since watches may have been lost with the
// previous one.
func (se *session) reconnectedLocked(g *lockNode) {
	g.watched = false
	if g.before != "" {
		se.waitForLocked(g, "")
		se.store.hint(cache.HintAvailable, g)
	}
	se.markDirtyLocked(g)
}
