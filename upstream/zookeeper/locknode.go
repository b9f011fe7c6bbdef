package zookeeper

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

type nodeID struct {
	key    string
	token  uint64
	permit bool // of a semaphore, which is independent of the lock with that key
}

func idOf(op *upstream.Op) nodeID { return nodeID{op.Key, op.Token, op.Mode == cache.Permit} }

// lockNode is a node of this session that exists, or may exist.
type lockNode struct {
	nodeID
	parent string // the path of the lock or semaphore
	mode   cache.Mode
	name   string // its name; empty until the making of the node has been answered
	seq    int32
	base   uint64
	try    bool    // its name marks it as a try
	permit *permit // nil for a lock

	// The fields below are guarded by session.mu, as are the maps that have the lock node. The
	// fields above belong to the Apply that has the key's op; renewals read them once held is
	// set.
	held      bool
	watched   bool   // the lock's children are watched
	contended bool   // another host waited when the lock was last checked
	gone      bool   // another client has deleted the node
	leaving   bool   // this store is deleting the node, so its absence means nothing
	before    string // the watched node that it waits for; empty if the queue has to be read
	guarded   bool   // the node itself is watched, too
	checked   time.Time
}

func (g *lockNode) path() string { return g.parent + "/" + g.name }

func (se *session) lockNode(id nodeID) *lockNode {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.lockNodes[id]
}

// add registers a node that is about to be made. The next reading watches the children of its
// lock.
func (se *session) add(op *upstream.Op) *lockNode {
	g := &lockNode{nodeID: idOf(op), parent: se.store.parentOf(op.Key), mode: op.Mode, watched: true,
		try: op.Kind == cache.OpTry || op.ShortLived}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.lockNodes[g.nodeID] = g
	se.byKey[g.parent] = append(se.byKey[g.parent], g)
	return g
}

// remove forgets a node that no longer exists.
func (se *session) remove(g *lockNode) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.lockNodes[g.nodeID] == g {
		delete(se.lockNodes, g.nodeID)
	}
	if g.permit != nil {
		se.dropPermitLocked(g)
		return
	}
	unlist(se.byKey, g.parent, g)
	if len(se.byKey[g.parent]) == 0 {
		se.store.idle.note(g.parent)
	}
	se.waitForLocked(g, "")
	if g.guarded {
		unlist(se.byNode, g.path(), g)
	}
	delete(se.dirty, g)
	delete(se.deleted, g)
}

func unlist(m map[string][]*lockNode, path string, g *lockNode) {
	l := m[path]
	if i := slices.Index(l, g); i >= 0 {
		l = slices.Delete(l, i, i+1)
	}
	if len(l) == 0 {
		delete(m, path)
	} else {
		m[path] = l
	}
}

// waitFor notes that g waits for the node at path, which is about to be watched. An empty path
// means none.
func (se *session) waitFor(g *lockNode, path string) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.waitForLocked(g, path)
}

func (se *session) waitForLocked(g *lockNode, path string) {
	if g.before != "" {
		unlist(se.byNode, g.before, g)
	}
	if g.before = path; path != "" {
		se.byNode[path] = append(se.byNode[path], g)
	}
}

// waitsFor reports whether g already waits for the node at path, with a watch on it.
func (se *session) waitsFor(g *lockNode, path string) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	return g.before == path
}

// leave notes whether this store is deleting g's node.
func (se *session) leave(g *lockNode, leaving bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if g.leaving = leaving; !leaving {
		se.markDirtyLocked(g)
	}
}

// hold notes that g is granted. The lock is checked soon if it has changed since it was read, or is
// not watched.
func (se *session) hold(g *lockNode, wanted bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.waitForLocked(g, "")
	g.held, g.leaving, g.contended = true, false, wanted
	if _, dirty := se.dirty[g]; dirty || !g.watched {
		se.markDirtyLocked(g)
	}
}

// hint sends a hint about one lock node.
func (s *Store) hint(kind cache.HintKind, g *lockNode) {
	h := upstream.Hint{Kind: kind, Key: g.key}
	if g.permit != nil {
		h.Mode, h.Token = cache.Permit, g.token
	}
	s.hints.Send(h)
}
