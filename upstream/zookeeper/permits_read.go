package zookeeper

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

const (
	// checkIntervalPerNode is added to checkInterval for each child of a semaphore, because each
	// reading reads all of them.
	checkIntervalPerNode = 200 * time.Microsecond
	// maxNotices limits how often a waiter is told that it may be granted. It also asks by itself
	// from time to time.
	maxNotices = 6
)

// reading has the children of a semaphore at one time.
type reading struct {
	no        int // its number among the semaphore's readings
	watched   bool
	queue     []node
	mine      map[uint64]int // the indices of our tokens
	twice     []int          // further nodes with our tokens
	contended bool           // another host waits, and no permit is free for it
	inside    string         // the path of a node that is known to be held
}

// behind returns the node behind an index, or nil.
func (r *reading) behind(at int) *node {
	if at+1 < len(r.queue) {
		return &r.queue[at+1]
	}
	return nil
}

// readPermits reads a semaphore, and watches it if watch is set.
func (se *session) readPermits(ctx context.Context, sem *semaphore, watch bool) (
	r reading, err error) {
	se.mu.Lock()
	sem.readings++
	r.no, r.watched = sem.readings, watch || sem.armed
	arm := watch && !sem.armed
	sem.armed = r.watched
	sem.dirty, sem.urgent, sem.checked = false, false, time.Now()
	delete(se.sems.dirty, sem)
	se.mu.Unlock()
	names, err := se.children(ctx, sem.parent, arm)
	if err != nil {
		se.mu.Lock()
		defer se.mu.Unlock()
		if arm {
			sem.armed, r.watched = false, false
		}
		if err != errNoNode {
			se.markSemaphoreLocked(sem, false)
			return r, err
		}
	}
	r.queue = readQueue(names, parsePermit)
	r.mine = map[uint64]int{}
	for i := range r.queue {
		switch n := &r.queue[i]; {
		case n.sid != se.id:
			r.contended = r.contended || !n.try && i >= int(n.limit)
		default:
			if _, again := r.mine[n.token]; again {
				r.twice = append(r.twice, i)
			} else {
				r.mine[n.token] = i
			}
		}
	}
	return r, nil
}

// processReading applies a reading, and makes sure that the first waiter of this host will be
// told when it may be granted. If this needs another reading, it replaces r with it, which has
// not been applied yet, and returns true.
func (se *session) processReading(ctx context.Context, sem *semaphore, r *reading) (
	again bool, err error) {
	for _, i := range r.twice { // made by a request that was carried out twice
		_ = se.delete(ctx, sem.parent+"/"+r.queue[i].name, -1, true)
	}
	path, watch := se.applyReading(sem, r)
	inside := ""
	if path != "" {
		data, err := se.watchFor(ctx, sem, path)
		if err != nil && err != errNoNode {
			return false, err
		}
		if err == nil && !dataHeld(data) {
			return false, nil
		}
		again = true
		if err == nil {
			inside = path
		}
	}
	if !again && !watch {
		return false, nil
	}
	next, err := se.readPermits(ctx, sem, watch)
	if err != nil {
		return false, err
	}
	*r, r.inside = next, inside
	return true, nil
}

// applyReading updates the semaphore. It returns the path of a node that has to be watched, or
// whether the children have to be watched.
func (se *session) applyReading(sem *semaphore, r *reading) (path string, watch bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.sems.byPath[sem.parent] != sem {
		return "", false
	}
	sem.size = len(r.queue)
	if sem.held > 0 && r.contended && !sem.contended {
		se.store.hints.Send(upstream.Hint{Kind: cache.HintContended, Mode: cache.Permit,
			Key: sem.key})
	}
	sem.contended = r.contended
	first, place := se.reviewNodesLocked(sem, r)
	sem.first, sem.next = first, false
	if first == nil {
		return "", false
	}
	// The first waiter cannot be granted before the node before it. That node's data changes when
	// it is granted after waiting. A node that is held already does not change any more.
	before := &r.queue[place-1]
	path = sem.parent + "/" + before.name
	if place > int(first.permit.limit) && place-1 >= int(before.limit) && path != r.inside {
		if _, ok := sem.watches[path]; ok {
			return "", false
		}
		return path, false
	}
	sem.next = true
	if r.watched && !sem.armed { // the children have changed since the reading
		se.notifyLocked(first)
	}
	return "", !r.watched
}

// reviewNodesLocked tells the waiters of this host that may be granted, and finds deleted nodes
// and the first waiter that cannot be granted.
func (se *session) reviewNodesLocked(sem *semaphore, r *reading) (first *lockNode, place int) {
	for _, g := range sem.nodes {
		at, there := r.mine[g.token]
		switch {
		case g.leaving || g.name == "":
		case !there && g.permit.firstReading < r.no:
			if se.nodeDeletedLocked(g); g.permit.queued && g.permit.notices == 0 {
				se.notifyLocked(g) // it makes a new node when it asks again
			}
		case !there || !g.permit.queued:
		case at < int(g.permit.limit):
			if g.permit.notices == 0 {
				se.notifyLocked(g)
			}
		default:
			g.permit.notices = 0
			delete(se.sems.notified, g)
			if first == nil || at < place {
				first, place = g, at
			}
		}
	}
	return first, place
}

// watchFor watches a node of another host that is before a waiter of this host.
func (se *session) watchFor(ctx context.Context, sem *semaphore, path string) ([]byte, error) {
	se.mu.Lock()
	if se.sems.byPath[sem.parent] == sem {
		se.sems.byNode[path] = sem
		sem.watches[path] = struct{}{}
	}
	se.mu.Unlock()
	n, err := se.get(ctx, path, true)
	if err != nil {
		se.mu.Lock()
		if se.sems.byNode[path] == sem {
			delete(se.sems.byNode, path)
		}
		delete(sem.watches, path)
		if err != errNoNode {
			se.markSemaphoreLocked(sem, true)
		}
		se.mu.Unlock()
	}
	return n.data, err
}

// checkSemaphore reads a semaphore that has changed.
func (se *session) checkSemaphore(ctx context.Context, sem *semaphore) error {
	se.mu.Lock()
	watch := sem.held > 0 || sem.next
	se.mu.Unlock()
	r, err := se.readPermits(ctx, sem, watch)
	for range attempts {
		if err != nil {
			return err
		}
		var again bool
		if again, err = se.processReading(ctx, sem, &r); err == nil && !again {
			return nil
		}
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.markSemaphoreLocked(sem, false)
	return err
}

// mark writes into the node of a permit that it is held. This wakes the waiter behind it.
func (se *session) mark(ctx context.Context, g *lockNode) {
	err := se.set(ctx, g.path(), heldData(se.store.host), -1, true)
	if v := outcome(err); v != driverkit.Done && v != driverkit.Refused {
		return // watch tries again
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	delete(se.sems.marks, g)
}

// duePermitsLocked is due for semaphores. The caller holds session.mu.
func (se *session) duePermitsLocked(now time.Time) (
	jobs []func(context.Context), wait time.Duration) {
	for g := range se.sems.notified {
		if g.permit.noticeAt.Before(now) {
			se.notifyLocked(g)
		}
		wait = sooner(wait, max(g.permit.noticeAt.Sub(now), time.Millisecond))
	}
	for g := range se.sems.marks {
		if len(jobs) < maxChecks {
			jobs = append(jobs, func(ctx context.Context) { se.mark(ctx, g) })
		}
		wait = sooner(wait, checkInterval) // in case it fails
	}
	for sem := range se.sems.dirty {
		left := checkInterval + time.Duration(sem.size)*checkIntervalPerNode - now.Sub(sem.checked)
		switch {
		case sem.held == 0 && sem.waiting == 0 && !sem.urgent:
			delete(se.sems.dirty, sem) // the next acquire reads it
		case left > 0 && !sem.urgent:
			wait = sooner(wait, left)
		case len(jobs) < maxChecks:
			jobs = append(jobs, func(ctx context.Context) { _ = se.checkSemaphore(ctx, sem) })
		}
	}
	return jobs, wait
}
