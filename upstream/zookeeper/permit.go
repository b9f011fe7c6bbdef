package zookeeper

import (
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// semaphores is what a session has to do with semaphores; guarded by session.mu.
type semaphores struct {
	byPath  map[string]*semaphore
	byNode  map[string]*semaphore   // by the path of another's node that is watched
	soiled  map[*semaphore]struct{} // those that have to be looked at
	invited map[*lockNode]struct{}  // those who were told that they may come in, and have not
	marks   map[*lockNode]struct{}  // those whose nodes have to say that they do not wait any more
	full    map[string]time.Time    // semaphores' paths: they were full when they were last looked at
}

func newSemaphores() semaphores {
	return semaphores{map[string]*semaphore{}, map[string]*semaphore{}, map[*semaphore]struct{}{}, map[*lockNode]struct{}{},
		map[*lockNode]struct{}{}, map[string]time.Time{}}
}

// semaphore is one in which this session has permits, or places in the queue. All
// but what never changes is guarded by session.mu.
type semaphore struct {
	key, parent string
	nodes       map[uint64]*lockNode // by token
	watches     map[string]struct{}  // its part of byNode
	held        int                  // number of lock nodes that hold a permit
	waiting     int                  // number of lock nodes that wait
	readings    int                  // that were begun
	size        int                  // how many children the last one showed
	armed       bool                 // changes of the children will be told
	wanted      bool                 // another host waited when they were last read
	first       *lockNode            // the first of ours that has to wait
	next        bool                 // whoever goes, it may come in: it waits for the children to change
	dirty       bool
	urgent      bool
	looked      time.Time
}

// permit has the additional fields of a semaphore's lock node. All but sem is guarded by
// session.mu.
type permit struct {
	sem    *semaphore
	limit  uint32 // as it was last said
	queued bool   // it waits
	told   int    // how often it was told that it may come in
	tell   time.Time
	born   int // how many readings had been begun when its node was known to stand
}

func validPermit(op *upstream.Op) error {
	switch op.Kind {
	case cache.OpDowngrade:
		return fmt.Errorf("%w: a permit of a semaphore cannot be downgraded", ErrRefused)
	case cache.OpTry, cache.OpJoin:
		if op.Limit == 0 {
			return fmt.Errorf("%w: a semaphore without permits", ErrRefused)
		}
	}
	return nil
}

// addPermit registers a permit's node that is about to be made.
func (se *session) addPermit(op *upstream.Op) *lockNode {
	parent := se.store.permitsOf(op.Key)
	se.mu.Lock()
	defer se.mu.Unlock()
	sem := se.sems.byPath[parent]
	if sem == nil {
		sem = &semaphore{key: op.Key, parent: parent, nodes: map[uint64]*lockNode{}, watches: map[string]struct{}{}}
		se.sems.byPath[parent] = sem
	}
	g := &lockNode{nodeID: idOf(op), parent: parent, mode: cache.Permit, try: op.Kind == cache.OpTry, permit: &permit{sem: sem, limit: op.Limit}}
	se.lockNodes[g.nodeID] = g
	sem.nodes[g.token] = g
	return g
}

// dropPermitLocked forgets a permit whose node is not there any more. Those of ours
// behind it have to find out what they wait for now.
func (se *session) dropPermitLocked(g *lockNode) {
	sem := g.permit.sem
	if sem.nodes[g.token] != g {
		return
	}
	delete(sem.nodes, g.token)
	delete(se.missed, g)
	delete(se.sems.invited, g)
	delete(se.sems.marks, g)
	if g.held {
		sem.held--
	}
	g.queueLocked(false)
	if sem.first == g {
		sem.first, sem.next = nil, false
		se.soilPermitsLocked(sem, true)
	}
	if len(sem.nodes) > 0 {
		return
	}
	delete(se.sems.byPath, sem.parent)
	se.store.idle.note(sem.parent)
	delete(se.sems.soiled, sem)
	for path := range sem.watches {
		delete(se.sems.byNode, path)
	}
}

// bareLocked says that no node of the semaphore is known to stand.
func (sem *semaphore) bareLocked() bool {
	for _, g := range sem.nodes {
		if g.name != "" {
			return false
		}
	}
	return true
}

// permitsChangedLocked takes the news that the children of a semaphore have changed.
func (se *session) permitsChangedLocked(path string) {
	sem := se.sems.byPath[path]
	if sem == nil {
		return
	}
	sem.armed = false
	if sem.next && sem.first != nil {
		se.inviteLocked(sem.first)
	}
	if sem.held > 0 || sem.next {
		se.soilPermitsLocked(sem, false)
	}
}

// permitToldLocked takes the news that a node has gone, or does not wait any more.
func (se *session) permitToldLocked(ev zk.Event) {
	if ev.Type == zk.EventNodeDeleted {
		se.permitsChangedLocked(ev.Path) // the semaphore's own node: its children went before it
	}
	if sem := se.sems.byNode[ev.Path]; sem != nil {
		delete(se.sems.byNode, ev.Path)
		delete(sem.watches, ev.Path)
		se.soilPermitsLocked(sem, true)
	}
}

// soilPermitsLocked says that a semaphore has to be looked at: urgently if one of
// ours might wait for nothing otherwise.
func (se *session) soilPermitsLocked(sem *semaphore, urgent bool) {
	sem.dirty = true
	sem.urgent = sem.urgent || urgent
	if se.sems.byPath[sem.parent] == sem {
		se.sems.soiled[sem] = struct{}{}
		se.store.stir()
	}
}

// anewPermitsLocked is for a new connection: watches may have been lost on the way to it.
func (se *session) anewPermitsLocked() {
	clear(se.sems.byNode)
	for _, sem := range se.sems.byPath {
		clear(sem.watches)
		sem.armed = false
		se.soilPermitsLocked(sem, true)
	}
}

// inviteLocked tells a waiting permit that it may come in. As the word may get lost,
// it is said again: see duePermits.
func (se *session) inviteLocked(g *lockNode) {
	p := g.permit
	if !p.queued || g.leaving {
		return
	}
	if p.told++; p.told > invitations {
		delete(se.sems.invited, g)
		return
	}
	p.tell = time.Now().Add(lookEvery << p.told)
	se.sems.invited[g] = struct{}{}
	se.store.hintAbout(cache.HintAvailable, g)
}

// joining says that one which waits asks whether it may come in.
func (se *session) joining(g *lockNode, limit uint32) {
	se.mu.Lock()
	defer se.mu.Unlock()
	g.permit.limit, g.permit.told = limit, 0
	delete(se.sems.invited, g)
}

// enterPermit notes that g is granted. next is the node behind it, if there is one.
func (se *session) enterPermit(g *lockNode, next *node) {
	se.mu.Lock()
	defer se.mu.Unlock()
	sem := g.permit.sem
	if !g.held {
		sem.held++
		if next != nil && next.sid != se.id {
			se.sems.marks[g] = struct{}{}
			se.store.stir()
		}
	}
	g.held, g.leaving, g.gone = true, false, false
	g.queueLocked(false)
	delete(se.missed, g)
	if sem.first == g {
		sem.first, sem.next = nil, false
	}
	if sem.dirty || !sem.armed {
		se.soilPermitsLocked(sem, false)
	}
}

// settlePermit notes that g waits, or is about to leave.
func (se *session) settlePermit(g *lockNode, queued bool) {
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

func hintOf(kind cache.HintKind, sem *semaphore) upstream.Hint {
	return upstream.Hint{Kind: kind, Mode: cache.Permit, Key: sem.key}
}
