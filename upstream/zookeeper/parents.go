package zookeeper

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// Limits for idle parents: see doc.go, "Idle parents".
const (
	// idleTime is how long a parent is kept after its last use by this store.
	idleTime = time.Minute
	// maxIdleBytes limits the memory for idle parents: above it, the oldest are removed early. It
	// is enough for about 10,000 parents with short names.
	maxIdleBytes = 2 << 20
	// hardIdleBytes limits the memory while no parent can be removed, because there is no connection.
	// Above it, the oldest are forgotten and left to the server.
	hardIdleBytes = 4 * maxIdleBytes
	// idleCost is the memory of one idle parent in bytes, without its path.
	idleCost = 200
	// roundRemovals limits the removals of one round, and batchRemovals limits the removals of one
	// transaction.
	roundRemovals, batchRemovals = 1024, 256
	// removalPause is the shortest pause between rounds, unless memory is above maxIdleBytes.
	removalPause = 50 * time.Millisecond
	// removalRetry is the pause after a round that the server did not answer.
	removalRetry = time.Second
	// removalTries is how often the removal of a parent is tried while it has children.
	removalTries = 3
)

// parentData is the data of the containers that locksidecars make. It marks them, because a stat
// does not tell a container from a permanent node, on which other clients may rely.
const parentData = "locksidecar"

// defaultIdle has the limits outside tests.
var defaultIdle = idleLimits{idleTime, maxIdleBytes, removalPause}

// idleParents remembers the parents of locks and semaphores below which this store has no node
// left.
type idleParents struct {
	idleLimits
	kick chan struct{} // wakes the remover before its timer

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

func newIdleParents(limits idleLimits) *idleParents {
	return &idleParents{idleLimits: limits, kick: make(chan struct{}, 1),
		byPath: map[string]*list.Element{}, queue: list.New()}
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
	for ps.bytes > hardIdleBytes {
		ps.takeLocked(ps.queue.Front())
	}
	if ps.queue.Len() == 1 || ps.bytes > ps.limit {
		signal(ps.kick)
	}
}

func (ps *idleParents) takeLocked(e *list.Element) *idleParent {
	p := ps.queue.Remove(e).(*idleParent)
	delete(ps.byPath, p.path)
	ps.bytes -= idleCost + len(p.path)
	return p
}

// again puts back parents that could not be removed, and forgets parents that were in use each
// time. It does not change a parent that was noted in the meantime.
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

// overLimit reports whether removal has fallen behind, because memory is clearly above the limit.
func (ps *idleParents) overLimit() bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.bytes > ps.limit+ps.limit/4
}

// due takes the parents that must be removed now. It also returns the time until more are due, or 0
// if none remain.
func (ps *idleParents) due() (due []*idleParent, wait time.Duration) {
	now := time.Now()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for e := ps.queue.Front(); e != nil; e = ps.queue.Front() {
		wait = ps.after - now.Sub(e.Value.(*idleParent).at)
		if wait > 0 && ps.bytes <= ps.limit {
			return due, wait
		}
		if len(due) == roundRemovals {
			return due, ps.pause
		}
		due = append(due, ps.takeLocked(e))
	}
	return due, 0
}

// keepRemovingIdle removes idle parents until ctx ends. It pauses for as long as the last round
// took, unless removal has fallen behind. So it keeps up with any rate of new keys.
func (s *Store) keepRemovingIdle(ctx context.Context) {
	repeat(ctx, s.idle.kick, time.Hour, func() time.Duration {
		rest, wait := s.removeIdle(ctx)
		driverkit.Sleep(ctx, rest)
		return max(wait, 1)
	})
}

// removeIdle carries out one round. It returns the pause that must follow, and the time until the
// next parent is due.
func (s *Store) removeIdle(ctx context.Context) (rest, wait time.Duration) {
	se := s.current()
	if se == nil || se.available() != nil {
		return removalRetry, 0
	}
	began := time.Now()
	due, wait := s.idle.due()
	if wait == 0 {
		wait = time.Hour // note wakes the remover
	}
	if len(due) == 0 {
		return 0, wait
	}
	parts := slices.Collect(slices.Chunk(due, batchRemovals))
	answered := make([]bool, len(parts))
	together(len(parts), func(i int) { answered[i] = se.removeParents(ctx, parts[i]) })
	switch {
	case slices.Contains(answered, false):
		return removalRetry, 0
	case s.idle.overLimit():
		return 0, 0
	}
	return max(s.idle.pause, time.Since(began)), wait
}

// removeParents removes the parents of part that are empty containers of a locksidecar. It returns
// false if the server did not answer for all of them.
func (se *session) removeParents(ctx context.Context, part []*idleParent) bool {
	ctx, cancel := context.WithTimeout(ctx, se.store.cfg.Timeout)
	defer cancel()
	part = se.unused(part, false)
	found, errs := each(part, func(p *idleParent) (content, error) {
		return se.get(ctx, p.path, false)
	})
	var empty, used, unanswered []*idleParent
	for i, p := range part {
		switch v := outcome(errs[i]); {
		case v == driverkit.Refused: // it does not exist, or this user has no access to it
		case v != driverkit.Done:
			unanswered = append(unanswered, p)
		case string(found[i].data) != parentData: // not made by a locksidecar
		case found[i].stat.NumChildren > 0:
			used = append(used, p)
		default:
			empty = append(empty, p)
		}
	}
	empty = se.unused(empty, true)
	for i, err := range se.deleteParents(ctx, empty) {
		switch v := outcome(err); {
		case v == driverkit.Done || err == errNoNode:
		case v == driverkit.Refused:
			used = append(used, empty[i])
		default:
			unanswered = append(unanswered, empty[i])
		}
	}
	se.store.idle.again(used, true)
	se.store.idle.again(unanswered, false)
	return len(unanswered) == 0
}

// unused returns the parents below which this session has no node. If forget is true, later
// acquires create these parents again.
func (se *session) unused(parents []*idleParent, forget bool) []*idleParent {
	se.mu.Lock()
	defer se.mu.Unlock()
	var out []*idleParent
	for _, p := range parents {
		// A parent in use is noted again later.
		if len(se.byKey[p.path]) == 0 && se.sems.byPath[p.path] == nil {
			out = append(out, p)
			if forget {
				se.parents.remove(p.path)
			}
		}
	}
	return out
}

// deleteParents deletes parents in one transaction. If the server refuses it because of one of
// them, each parent gets its own transaction. A server deletes no node that has children.
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
	if outcome(err) != driverkit.Refused {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	together(len(parents), func(i int) { errs[i] = se.delete(ctx, parents[i].path, -1, true) })
	return errs
}

// noteAll notes the parents of all nodes of a session that is over.
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
