package zookeeper

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
)

const (
	// lookEach is what each child of a semaphore adds to lookEvery: they are all read.
	lookEach = 200 * time.Microsecond
	// invitations bounds how often one that waits is told that it may come in. It
	// asks by itself now and then.
	invitations = 6
)

// reading is the children of a semaphore as they were once.
type reading struct {
	no      int // of the semaphore's
	watched bool
	queue   []node
	mine    map[uint64]int // where our tokens stand
	twice   []int          // further nodes with our tokens
	wanted  bool           // another host waits and has no permit free to take
	inside  string         // a node that is known not to wait any more, by its path
}

// at is the place of a token of ours.
func (r *reading) at(token uint64) (at int, ok bool) {
	at, ok = r.mine[token]
	return at, ok
}

// behind is the node behind a place; nil when there is none.
func (r *reading) behind(at int) *node {
	if at+1 < len(r.queue) {
		return &r.queue[at+1]
	}
	return nil
}

// permits reads who has permits and who waits for one; nobody when the semaphore has
// no node.
func (se *session) permits(ctx context.Context, parent string, watch bool) ([]node, error) {
	names, err := se.children(ctx, parent, watch)
	if err == errGone {
		return nil, nil
	}
	return readPermits(names), err
}

// readPermits reads a semaphore, and watches it if watch is set.
func (se *session) readPermits(ctx context.Context, sem *semaphore, watch bool) (r reading, err error) {
	se.mu.Lock()
	sem.readings++
	r.no, r.watched = sem.readings, watch || sem.armed
	arm := watch && !sem.armed
	sem.armed = r.watched
	sem.dirty, sem.urgent, sem.looked = false, false, time.Now()
	delete(se.sems.soiled, sem)
	se.mu.Unlock()
	names, err := se.children(ctx, sem.parent, arm)
	if err != nil {
		se.mu.Lock()
		defer se.mu.Unlock()
		if arm {
			sem.armed, r.watched = false, false
		}
		if err != errGone {
			se.soilPermitsLocked(sem, false)
			return r, err
		}
	}
	r.queue = readPermits(names)
	r.mine = map[uint64]int{}
	for i := range r.queue {
		switch n := &r.queue[i]; {
		case n.sid != se.id:
			r.wanted = r.wanted || !n.try && i >= int(n.limit)
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

// arrange takes in what a reading shows, and sees to it that we are told when the
// first of ours that has to wait may come in. When it has read once more for that,
// it puts the new reading in the place of the old one, which has not been taken in.
func (se *session) arrange(ctx context.Context, sem *semaphore, r *reading) (again bool, err error) {
	for _, i := range r.twice { // made by a request that came twice
		path := sem.parent + "/" + r.queue[i].name
		_, _ = call(ctx, se, true, func(c *zk.Conn) (any, error) { return nil, c.Delete(path, -1) })
	}
	path, watch := se.takeIn(sem, r)
	inside := ""
	if path != "" {
		data, err := se.watchFor(ctx, sem, path)
		if err != nil && err != errGone {
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

// takeIn returns a node that has to be watched, or that the children have to be.
func (se *session) takeIn(sem *semaphore, r *reading) (path string, watch bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.sems.byPath[sem.parent] != sem {
		return "", false
	}
	sem.size = len(r.queue)
	if sem.held > 0 && r.wanted && !sem.wanted {
		se.store.pass(hintOf(cache.HintContended, sem))
	}
	sem.wanted = r.wanted
	first, place := se.sortOutLocked(sem, r)
	sem.first, sem.next = first, false
	if first == nil {
		return "", false
	}
	// Nobody may come in before the one before it; when that does, its node says so.
	// But one that has a permit will not say it again.
	before := &r.queue[place-1]
	path = sem.parent + "/" + before.name
	if place > int(first.permit.limit) && place-1 >= int(before.limit) && path != r.inside {
		if _, ok := sem.watches[path]; ok {
			return "", false
		}
		return path, false
	}
	sem.next = true
	if r.watched && !sem.armed { // they have changed again since
		se.inviteLocked(first)
	}
	return "", !r.watched
}

// sortOutLocked tells those of ours that may come in, and finds those that have
// disappeared, and the first that has to wait.
func (se *session) sortOutLocked(sem *semaphore, r *reading) (first *lockNode, place int) {
	for _, g := range sem.nodes {
		at, there := r.at(g.token)
		switch {
		case g.leaving || g.name == "":
		case !there && g.permit.born < r.no:
			if se.goneLocked(g); g.permit.queued && g.permit.told == 0 {
				se.inviteLocked(g) // to make a new node
			}
		case !there || !g.permit.queued:
		case at < int(g.permit.limit):
			if g.permit.told == 0 {
				se.inviteLocked(g)
			}
		default:
			g.permit.told = 0
			delete(se.sems.invited, g)
			if first == nil || at < place {
				first, place = g, at
			}
		}
	}
	return first, place
}

// watchFor watches a node of another host that waits before one of ours.
func (se *session) watchFor(ctx context.Context, sem *semaphore, path string) ([]byte, error) {
	se.mu.Lock()
	if se.sems.byPath[sem.parent] == sem {
		se.sems.byNode[path] = sem
		sem.watches[path] = struct{}{}
	}
	se.mu.Unlock()
	data, err := call(ctx, se, false, func(c *zk.Conn) ([]byte, error) {
		se.watching.Store(true)
		data, _, _, err := c.GetW(path)
		return data, err
	})
	if err != nil {
		se.mu.Lock()
		if se.sems.byNode[path] == sem {
			delete(se.sems.byNode, path)
		}
		delete(sem.watches, path)
		if err != errGone {
			se.soilPermitsLocked(sem, true)
		}
		se.mu.Unlock()
	}
	return data, err
}

// lookAtPermits reads a semaphore that has changed.
func (se *session) lookAtPermits(ctx context.Context, sem *semaphore) error {
	se.mu.Lock()
	watch := sem.held > 0 || sem.next
	se.mu.Unlock()
	r, err := se.readPermits(ctx, sem, watch)
	for range attempts {
		if err != nil {
			return err
		}
		var again bool
		if again, err = se.arrange(ctx, sem, &r); err == nil && !again {
			return nil
		}
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.soilPermitsLocked(sem, false)
	return err
}

// mark says in the node of a permit that it is held: that wakes who waits behind it.
func (se *session) mark(ctx context.Context, g *lockNode) {
	_, err := call(ctx, se, true, func(c *zk.Conn) (any, error) { return c.Set(g.path(), heldData(se.store.host), -1) })
	if v := judge(err); v != fine && v != refused {
		return // once more
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	delete(se.sems.marks, g)
}

// duePermits takes what has to be done about semaphores now, and says when there is
// more; 0 when nothing is known of.
func (se *session) duePermits() (jobs []func(context.Context), wait time.Duration) {
	now := time.Now()
	se.mu.Lock()
	defer se.mu.Unlock()
	if !se.ready || se.over { // the next connection calls again
		return nil, 0
	}
	for g := range se.sems.invited {
		if g.permit.tell.Before(now) {
			se.inviteLocked(g)
		}
		wait = sooner(wait, max(g.permit.tell.Sub(now), time.Millisecond))
	}
	for g := range se.sems.marks {
		if len(jobs) < lookAtOnce {
			jobs = append(jobs, func(ctx context.Context) { se.mark(ctx, g) })
		}
		wait = sooner(wait, lookEvery) // should it fail
	}
	for sem := range se.sems.soiled {
		left := lookEvery + time.Duration(sem.size)*lookEach - now.Sub(sem.looked)
		switch {
		case sem.held == 0 && sem.waiting == 0 && !sem.urgent:
			delete(se.sems.soiled, sem) // whoever asks next reads
		case left > 0 && !sem.urgent:
			wait = sooner(wait, left)
		case len(jobs) < lookAtOnce:
			jobs = append(jobs, func(ctx context.Context) { _ = se.lookAtPermits(ctx, sem) })
		}
	}
	return jobs, wait
}
