package zookeeper

import (
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

type nodeID struct {
	key    string
	token  uint64
	permit bool // of a semaphore, which has nothing to do with the lock of that key
}

func idOf(op *upstream.Op) nodeID { return nodeID{op.Key, op.Token, op.Mode == cache.Permit} }

// lockNode is a node of ours that exists, or may exist.
type lockNode struct {
	nodeID
	parent string // the lock's path
	mode   cache.Mode
	name   string // the node's; empty while the answer to its making has not come
	seq    int32
	base   uint64
	try    bool    // its name says so
	permit *permit // of a semaphore; nil for a lock

	// Guarded by session.mu, as are the maps that have the lock node. The fields above
	// belong to the Apply that has the key's op; renewals read them once held is set.
	held      bool
	watched   bool   // changes of the lock's children will be told
	contended bool   // another host waited when the lock was last looked at
	gone      bool   // its node has disappeared
	leaving   bool   // its node is being deleted by us: nobody has to look at that
	before    string // the node behind which we wait, watched; empty when we have to look
	guarded   bool   // its own node is watched too
	looked    time.Time
}

func (g *lockNode) path() string { return g.parent + "/" + g.name }

func (se *session) lockNode(id nodeID) *lockNode {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.lockNodes[id]
}

// add registers a node that is about to be made. Its lock's children are watched by
// the reading that follows.
func (se *session) add(id nodeID, parent string, mode cache.Mode, try bool) *lockNode {
	g := &lockNode{nodeID: id, parent: parent, mode: mode, try: try, watched: true}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.lockNodes[id] = g
	se.byKey[parent] = append(se.byKey[parent], g)
	return g
}

// remove forgets a node that is not there any more.
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
	if g.before != "" {
		unlist(se.byNode, g.before, g)
	}
	if g.guarded {
		unlist(se.byNode, g.path(), g)
	}
	delete(se.dirty, g)
	delete(se.missed, g)
}

func unlist(m map[string][]*lockNode, path string, g *lockNode) {
	l := m[path]
	for i := range l {
		if l[i] == g {
			l[i] = l[len(l)-1]
			l[len(l)-1] = nil
			l = l[:len(l)-1]
			break
		}
	}
	if len(l) == 0 {
		delete(m, path)
	} else {
		m[path] = l
	}
}

// waitFor notes that g waits behind a node, which is about to be watched.
func (se *session) waitFor(g *lockNode, path string) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if g.before != "" {
		unlist(se.byNode, g.before, g)
	}
	if g.before = path; path != "" {
		se.byNode[path] = append(se.byNode[path], g)
	}
}

// waitsFor says whether g waits behind that node already, with a watch on it.
func (se *session) waitsFor(g *lockNode, path string) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	return g.before == path
}

// noticed takes a watch's event. It is called by the library between two answers,
// in the order in which the server sent all of them.
func (se *session) noticed(ev zk.Event) {
	if strings.HasPrefix(ev.Path, se.store.asks.dir) {
		se.store.questioned()
		return
	}
	switch ev.Type {
	case zk.EventNodeChildrenChanged:
		se.mu.Lock()
		for _, g := range se.byKey[ev.Path] {
			g.watched = false
			se.soilLocked(g)
		}
		se.permitsChangedLocked(ev.Path)
		se.mu.Unlock()
	case zk.EventNodeDeleted, zk.EventNodeDataChanged:
		se.mu.Lock()
		for _, g := range append([]*lockNode(nil), se.byNode[ev.Path]...) {
			se.toldLocked(g, ev)
		}
		for _, g := range se.byKey[ev.Path] { // the lock's node itself: its children went before it
			g.watched = false
			se.soilLocked(g)
		}
		se.permitToldLocked(ev)
		se.mu.Unlock()
	}
}

func (se *session) toldLocked(g *lockNode, ev zk.Event) {
	if g.before == ev.Path {
		unlist(se.byNode, g.before, g)
		g.before = ""
		se.store.hint(cache.HintAvailable, g.key)
		return
	}
	if g.guarded && ev.Path == g.path() {
		unlist(se.byNode, ev.Path, g)
		g.guarded = false
		if ev.Type == zk.EventNodeDeleted {
			se.goneLocked(g)
		}
	}
}

// goneLocked notes that the node of a lease has disappeared: another client has deleted
// it. While this store itself deletes the node, its absence means nothing. If that deletion
// fails, leave causes another check of the lock.
func (se *session) goneLocked(g *lockNode) {
	if !g.held || g.gone || g.leaving {
		return
	}
	g.gone = true
	se.missed[g] = struct{}{} // said again with each sign of life until it is given up: hints may be lost
	se.store.log.Warn("a lease's node has been deleted by somebody else: the lease is lost", zap.String("node", g.path()))
	se.store.hintAbout(cache.HintGone, g)
}

// soilLocked says that g's lock has to be looked at. Those that wait look at it by
// themselves.
func (se *session) soilLocked(g *lockNode) {
	if g.permit != nil {
		se.soilPermitsLocked(g.permit.sem, false)
		return
	}
	se.dirty[g] = struct{}{}
	if g.held && !g.leaving {
		se.store.stir()
	}
}

// leave notes that g's node is about to be deleted, or with false that it was not.
func (se *session) leave(g *lockNode, leaving bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if g.leaving = leaving; !leaving {
		se.soilLocked(g)
	}
}

// anewLocked is for a new connection: watches may have been lost on the way to it.
func (se *session) anewLocked(g *lockNode) {
	g.watched = false
	if g.before != "" {
		unlist(se.byNode, g.before, g)
		g.before = ""
		se.store.hint(cache.HintAvailable, g.key)
	}
	se.soilLocked(g)
}

// hold notes that g is granted. Its lock is looked at again soon if it has changed
// since it was read, or is not watched.
func (se *session) hold(g *lockNode, wanted bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if g.before != "" {
		unlist(se.byNode, g.before, g)
		g.before = ""
	}
	g.held, g.leaving, g.contended = true, false, wanted
	if _, soiled := se.dirty[g]; soiled || !g.watched {
		se.soilLocked(g)
	}
}

// hint passes a hint on, unless nobody keeps up with them.
func (s *Store) hint(kind cache.HintKind, key string) { s.pass(upstream.Hint{Kind: kind, Key: key}) }

// hintAbout passes on a hint about one lock node.
func (s *Store) hintAbout(kind cache.HintKind, g *lockNode) {
	h := upstream.Hint{Kind: kind, Key: g.key}
	if g.permit != nil {
		h.Mode, h.Token = cache.Permit, g.token
	}
	s.pass(h)
}

func (s *Store) pass(h upstream.Hint) {
	select {
	case s.hints <- h:
	default:
	}
}

// parentOf is the path of a lock's node.
func (s *Store) parentOf(key string) string { return s.cfg.Chroot + "/" + escape(key) }

// root is a node that is there as long as the store works.
func (s *Store) root() string {
	if s.cfg.Chroot == "" {
		return "/"
	}
	return s.cfg.Chroot
}

// keyOf is the key of a lock by the name of its node; not one of ours when ok is
// false.
func keyOf(name string) (key string, ok bool) {
	if name == own || name == "zookeeper" {
		return "", false
	}
	return unescape(name), !strings.Contains(name, "/")
}
