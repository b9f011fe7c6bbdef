package zookeeper

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// Idle parents: see doc.go, "Idle parents".
const (
	// idleFor is how long a parent stays after this store has used it.
	idleFor = time.Minute
	// idleMost bounds the bytes of what is remembered of idle parents: the oldest ones above
	// it are removed early. It is some 10,000 parents of short names.
	idleMost = 2 << 20
	// idleHard is the same for parents that cannot be removed, as there is no connection: the
	// oldest ones above it are left to the server.
	idleHard = 4 * idleMost
	// idleCost is what an idle parent takes beside its path, in bytes.
	idleCost = 200
	// removals bounds how many are removed in one round, and removalsAtOnce in one transaction.
	removals, removalsAtOnce = 1024, 256
	// removalPause is the shortest pause between rounds, unless there are more than idleMost.
	removalPause = 50 * time.Millisecond
	// removalRetry is the pause after a round that the server did not answer.
	removalRetry = time.Second
	// removalTries is how often the removal of one that has children is tried.
	removalTries = 3
)

// parentData is the data of the containers that a locksidecar makes. A stat does not tell a
// container from a node that somebody has made for good, and may rely on.
const parentData = "locksidecar"

// idleParents is what this store remembers of the parents of locks and semaphores below which it
// has no node any more.
type idleParents struct {
	after time.Duration // idleFor, but for tests
	most  int           // idleMost, but for tests
	pause time.Duration // removalPause, but for tests
	kick  chan struct{} // the remover may have something to do sooner than it knows

	mu     sync.Mutex
	byPath map[string]*list.Element // of queue; guarded by mu, as is all below
	queue  *list.List               // of *idleParent, by at
	bytes  int
}

type idleParent struct {
	path  string
	at    time.Time // of the last use, or of the last attempt to remove it
	tries int
}

func newIdleParents() *idleParents {
	return &idleParents{after: idleFor, most: idleMost, pause: removalPause, kick: make(chan struct{}, 1), byPath: map[string]*list.Element{}, queue: list.New()}
}

// note remembers that the last node of this store below path has gone.
func (ps *idleParents) note(path string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if e := ps.byPath[path]; e != nil {
		p := e.Value.(*idleParent)
		p.at, p.tries = time.Now(), 0
		ps.queue.MoveToBack(e)
		return
	}
	ps.addLocked(&idleParent{path: path, at: time.Now()})
}

func (ps *idleParents) addLocked(p *idleParent) {
	ps.byPath[p.path] = ps.queue.PushBack(p)
	ps.bytes += idleCost + len(p.path)
	for ps.bytes > idleHard {
		ps.takeLocked(ps.queue.Front())
	}
	if ps.queue.Len() == 1 || ps.bytes > ps.most {
		select {
		case ps.kick <- struct{}{}:
		default:
		}
	}
}

func (ps *idleParents) takeLocked(e *list.Element) *idleParent {
	p := ps.queue.Remove(e).(*idleParent)
	delete(ps.byPath, p.path)
	ps.bytes -= idleCost + len(p.path)
	return p
}

// again remembers parents that could not be removed, and forgets those that were in use too often.
// One that was noted meanwhile stays as it was noted.
func (ps *idleParents) again(parents []*idleParent, inUse bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range parents {
		if inUse {
			p.tries++
		}
		if p.tries < removalTries && ps.byPath[p.path] == nil {
			p.at = time.Now()
			ps.addLocked(p)
		}
	}
}

// crowded says that there are clearly more than may stay: removing them falls behind.
func (ps *idleParents) crowded() bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.bytes > ps.most+ps.most/4
}

// due takes what has to be removed now, and says when there will be more; 0 when nothing is
// known of.
func (ps *idleParents) due() (due []*idleParent, wait time.Duration) {
	now := time.Now()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for e := ps.queue.Front(); e != nil; e = ps.queue.Front() {
		wait = ps.after - now.Sub(e.Value.(*idleParent).at)
		if wait > 0 && ps.bytes <= ps.most {
			return due, wait
		}
		if len(due) == removals {
			return due, ps.pause
		}
		due = append(due, ps.takeLocked(e))
	}
	return due, 0
}

// tidy removes idle parents until ctx ends. So it removes them as fast as new keys come. It pauses
// for as long as a round took, unless it falls behind.
func (s *Store) tidy(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.idle.kick:
		case <-timer.C:
		}
		rest, wait := s.removeIdle(ctx)
		if rest > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(rest):
			}
		}
		timer.Reset(wait)
	}
}

// removeIdle carries out one round. It says how long to pause after it, and when the next one is
// due.
func (s *Store) removeIdle(ctx context.Context) (rest, wait time.Duration) {
	se := s.present()
	if se == nil || se.line() != nil {
		return removalRetry, 0
	}
	began := time.Now()
	due, wait := s.idle.due()
	if wait == 0 {
		wait = time.Hour // note says so when there is one
	}
	if len(due) == 0 {
		return 0, wait
	}
	parts := slices.Collect(slices.Chunk(due, removalsAtOnce))
	answered := make([]bool, len(parts))
	together(len(parts), func(i int) { answered[i] = se.removeParents(ctx, parts[i]) })
	switch {
	case slices.Contains(answered, false):
		return removalRetry, 0
	case s.idle.crowded():
		return 0, 0
	}
	return max(s.idle.pause, time.Since(began)), wait
}

// foundParent is what the server knows of a parent.
type foundParent struct {
	ours bool // a container that a locksidecar has made
	used bool // it has children
}

// removeParents removes those of part that are empty containers of a locksidecar. It is false when the server
// did not answer.
func (se *session) removeParents(ctx context.Context, part []*idleParent) bool {
	ctx, cancel := context.WithTimeout(ctx, se.store.cfg.Timeout)
	defer cancel()
	part = se.unused(part, false)
	found, errs := make([]foundParent, len(part)), make([]error, len(part))
	together(len(part), func(i int) {
		found[i], errs[i] = call(ctx, se, false, func(c *zk.Conn) (f foundParent, err error) {
			data, stat, err := c.Get(part[i].path)
			if err == nil {
				f = foundParent{string(data) == parentData, stat.NumChildren > 0}
			}
			return f, err
		})
	})
	var empty, used, unanswered []*idleParent
	for i, p := range part {
		switch v := judge(errs[i]); {
		case v == refused: // it has gone, or is closed to this user
		case v != fine:
			unanswered = append(unanswered, p)
		case !found[i].ours:
		case found[i].used:
			used = append(used, p)
		default:
			empty = append(empty, p)
		}
	}
	empty = se.unused(empty, true)
	for i, err := range se.deleteParents(ctx, empty) {
		switch v := judge(err); {
		case v == fine || err == errGone:
		case v == refused:
			used = append(used, empty[i])
		default:
			unanswered = append(unanswered, empty[i])
		}
	}
	se.store.idle.again(used, true)
	se.store.idle.again(unanswered, false)
	return len(unanswered) == 0
}

// unused is those of parents below which this session has no node. With forget, acquires
// that come from now on make them anew.
func (se *session) unused(parents []*idleParent, forget bool) []*idleParent {
	se.mu.Lock()
	defer se.mu.Unlock()
	var out []*idleParent
	for _, p := range parents {
		if len(se.byKey[p.path]) == 0 && se.sems.byPath[p.path] == nil { // else it is noted again
			out = append(out, p)
			if forget {
				delete(se.parents, p.path)
			}
		}
	}
	return out
}

// deleteParents deletes parents in one transaction; if that fails for one of them, each in one of
// its own. A server deletes no node that has children.
func (se *session) deleteParents(ctx context.Context, parents []*idleParent) []error {
	errs := make([]error, len(parents))
	if len(parents) == 0 {
		return errs
	}
	ops := make([]any, len(parents))
	for i, p := range parents {
		ops[i] = &zk.DeleteRequest{Path: p.path, Version: -1}
	}
	_, err := se.multi(ctx, ops...)
	if judge(err) != refused {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	together(len(parents), func(i int) {
		_, errs[i] = call(ctx, se, true, func(c *zk.Conn) (any, error) { return nil, c.Delete(parents[i].path, -1) })
	})
	return errs
}

// noteAll notes the parents of all that hung on a session that is over.
func (se *session) noteAll() {
	se.mu.Lock()
	defer se.mu.Unlock()
	for path := range se.byKey {
		se.store.idle.note(path)
	}
	for path := range se.sems.byPath {
		se.store.idle.note(path)
	}
}
