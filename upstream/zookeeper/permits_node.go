package zookeeper

import (
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// semaphores is a session's state of semaphores. It is guarded by session.mu.
type semaphores struct {
	byPath   map[string]*semaphore
	byNode   map[string]*semaphore   // by the path of a watched node of another host
	dirty    map[*semaphore]struct{} // semaphores that have to be checked
	notified map[*lockNode]struct{}  // waiters that have been told that they may be granted
	marks    map[*lockNode]struct{}  // holders whose nodes have to be marked as held
}

func newSemaphores() semaphores {
	return semaphores{map[string]*semaphore{}, map[string]*semaphore{}, map[*semaphore]struct{}{},
		map[*lockNode]struct{}{}, map[*lockNode]struct{}{}}
}

// semaphore is a semaphore in which this session holds permits or waits. All fields but key and
// parent are guarded by session.mu.
type semaphore struct {
	key, parent string
	nodes       map[uint64]*lockNode // by token
	watches     map[string]struct{}  // its paths in semaphores.byNode
	held        int                  // number of lock nodes that hold a permit
	waiting     int                  // number of lock nodes that wait
	readings    int                  // the number of readings that have begun
	size        int                  // the number of children in the last reading
	armed       bool                 // the children are watched
	contended   bool                 // another host waited at the last reading
	first       *lockNode            // the first waiter of this host
	// next means that any release lets first in, so that it needs a watch of the children.
	next    bool
	dirty   bool
	urgent  bool
	checked time.Time
}

// permit has the additional fields of a semaphore's lock node. All but sem are guarded by
// session.mu.
type permit struct {
	sem          *semaphore
	limit        uint32 // the limit of the last acquire
	queued       bool   // it waits in the queue
	notices      int    // how often it has been told that it may be granted
	noticeAt     time.Time
	firstReading int // the number of readings that had begun when its node was known to exist
}

// addPermit registers the node of a permit that is about to be made.
func (se *session) addPermit(op *upstream.Op) *lockNode {
	parent := se.store.permitsOf(op.Key)
	se.mu.Lock()
	defer se.mu.Unlock()
	sem := se.sems.byPath[parent]
	if sem == nil {
		sem = &semaphore{key: op.Key, parent: parent, nodes: map[uint64]*lockNode{},
			watches: map[string]struct{}{}}
		se.sems.byPath[parent] = sem
	}
	g := &lockNode{nodeID: idOf(op), parent: parent, mode: cache.Permit, try: op.Kind == cache.OpTry,
		permit: &permit{sem: sem, limit: op.Limit}}
	se.lockNodes[g.nodeID] = g
	sem.nodes[g.token] = g
	return g
}

// dropPermitLocked forgets a permit whose node no longer exists. The waiters of this host behind
// it have to find out which node they wait for now.
func (se *session) dropPermitLocked(g *lockNode) {
	sem := g.permit.sem
	if sem.nodes[g.token] != g {
		return
	}
	delete(sem.nodes, g.token)
	delete(se.deleted, g)
	delete(se.sems.notified, g)
	delete(se.sems.marks, g)
	if g.held {
		sem.held--
	}
	g.queueLocked(false)
	if sem.first == g {
		sem.first, sem.next = nil, false
		se.markSemaphoreLocked(sem, true)
	}
	if len(sem.nodes) > 0 {
		return
	}
	delete(se.sems.byPath, sem.parent)
	se.store.idle.note(sem.parent)
	delete(se.sems.dirty, sem)
	for path := range sem.watches {
		delete(se.sems.byNode, path)
	}
}

// bareLocked reports whether no node of the semaphore is known to exist.
func (sem *semaphore) bareLocked() bool {
	for _, g := range sem.nodes {
		if g.name != "" {
			return false
		}
	}
	return true
}

// permitsChangedLocked handles a change of the children of a semaphore's node.
func (se *session) permitsChangedLocked(path string) {
	sem := se.sems.byPath[path]
	if sem == nil {
		return
	}
	sem.armed = false
	if sem.next && sem.first != nil {
		se.notifyLocked(sem.first)
	}
	if sem.held > 0 || sem.next {
		se.markSemaphoreLocked(sem, false)
	}
}

// watchedPermitChangedLocked handles the deletion or the mark of a watched node of another host.
func (se *session) watchedPermitChangedLocked(path string) {
	if sem := se.sems.byNode[path]; sem != nil {
		delete(se.sems.byNode, path)
		delete(sem.watches, path)
		se.markSemaphoreLocked(sem, true)
	}
}

// markSemaphoreLocked notes that a semaphore has to be checked: urgently if a waiter of this host
// might miss its turn otherwise.
func (se *session) markSemaphoreLocked(sem *semaphore, urgent bool) {
	sem.dirty = true
	sem.urgent = sem.urgent || urgent
	if se.sems.byPath[sem.parent] == sem {
		se.sems.dirty[sem] = struct{}{}
		se.store.wakeWatch()
	}
}

// semaphoresReconnectedLocked prepares the semaphores for a new connection, since watches may
// have been lost with the previous one.
func (se *session) semaphoresReconnectedLocked() {
	clear(se.sems.byNode)
	for _, sem := range se.sems.byPath {
		clear(sem.watches)
		sem.armed = false
		se.markSemaphoreLocked(sem, true)
	}
}

// notifyLocked tells a waiter that it may be granted. The hint may be lost, so it is repeated:
// see duePermitsLocked.
func (se *session) notifyLocked(g *lockNode) {
	p := g.permit
	if !p.queued || g.leaving {
		return
	}
	if p.notices++; p.notices > maxNotices {
		delete(se.sems.notified, g)
		return
	}
	p.noticeAt = time.Now().Add(checkInterval << p.notices)
	se.sems.notified[g] = struct{}{}
	se.store.hint(cache.HintAvailable, g)
}

// joining notes that a waiter asks whether it is granted.
func (se *session) joining(g *lockNode, limit uint32) {
	se.mu.Lock()
	defer se.mu.Unlock()
	g.permit.limit, g.permit.notices = limit, 0
	delete(se.sems.notified, g)
}

// enterPermit notes that g is granted. next is the node behind it, or nil.
func (se *session) enterPermit(g *lockNode, next *node) {
	se.mu.Lock()
	defer se.mu.Unlock()
	sem := g.permit.sem
	if !g.held {
		sem.held++
		if next != nil && next.sid != se.id {
			se.sems.marks[g] = struct{}{}
			se.store.wakeWatch()
		}
	}
	g.held, g.leaving, g.gone = true, false, false
	g.queueLocked(false)
	delete(se.deleted, g)
	if sem.first == g {
		sem.first, sem.next = nil, false
	}
	if sem.dirty || !sem.armed {
		se.markSemaphoreLocked(sem, false)
	}
}

// setPermitQueued notes that g waits, or else that its node is about to be deleted.
func (se *session) setPermitQueued(g *lockNode, queued bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	g.leaving = !queued
	g.queueLocked(queued)
}

func (g *lockNode) queueLocked(queued bool) {
	if p := g.permit; p.queued != queued {
		if p.queued = queued; queued {
			p.sem.waiting++
		} else {
			p.sem.waiting--
		}
	}
}
