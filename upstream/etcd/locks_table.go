package etcd

import (
	"sync"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// keyState has what this Store knows of one of its keys, and of the key before it in the queue.
type keyState struct {
	dir, key string
	rev      int64  // create revision
	pred     string // if it queues: the key before it, whose change is waited for
	predRev  int64  // the create revision of pred
	predMod  int64  // the revision of the last write of pred
}

// lockKey describes one key that this Store has at etcd. The fields that identify it never change;
// lockKeys.mu guards the others.
type lockKey struct {
	lock  string
	token uint64
	sess  *session
	keyState

	mode      cache.Mode
	held      bool  // false: it queues
	leaving   bool  // its removal has been requested
	gone      bool  // it has been removed from the table
	since     int64 // held: since when, on the boot clock
	longIndex int   // its place in lockKeys.longHeld, from 1; 0 when it is not there

	permit *permit // for a semaphore; nil for a lock

	watch   int64 // the number of its watch; 0 when it has none
	watched bool  // the watch exists at the server
}

// acquireID identifies an acquire that has not been answered. Its request may still be in flight.
type acquireID struct {
	lock   string
	token  uint64
	permit bool
}

// lockKeys is the table of this Store's keys, at most one for each lock. It serves the watches, and
// it saves requests of repeated ops; a grant never follows from it alone.
type lockKeys struct {
	mu         sync.Mutex
	byLock     map[string]*lockKey
	sems       map[string]*sem     // semaphores
	unresolved map[acquireID]int64 // acquires without an answer, with the fence they compared
	recent     []*lockKey          // held, in the order of since, until they are worth a watch
	longHeld   []*lockKey          // held for longer, and checked in turn
	next       int                 // place in longHeld

	byWatch   map[int64]*lockKey
	lastWatch int64
	// question is the number of the watch for other daemons' questions, or 0 without one.
	question   int64
	questionOf int64      // the lease of the session that these questions ask
	create     []*lockKey // watches to be made
	cancel     []int64    // numbers of the watches to cancel
	check      []*lockKey // watches that have just been created: earlier changes were missed
	sending    chan struct{}
	checking   chan struct{}
}

func (t *lockKeys) init() {
	t.byLock, t.byWatch = map[string]*lockKey{}, map[int64]*lockKey{}
	t.unresolved, t.sems = map[acquireID]int64{}, map[string]*sem{}
	t.sending, t.checking = make(chan struct{}, 1), make(chan struct{}, 1)
}

// empty reports whether nothing of ours can exist at the store.
func (t *lockKeys) empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byLock) == 0 && len(t.sems) == 0 && len(t.unresolved) == 0
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// findLocked returns the lock key of a token under n, or nil.
func (t *lockKeys) findLocked(n *session, lock string, token uint64) *lockKey {
	if g := t.byLock[lock]; g != nil && g.token == token && g.sess == n {
		return g
	}
	return nil
}

// putLocked adds a key that exists. It removes another key of the same lock, because a daemon has
// only one.
func (t *lockKeys) putLocked(g *lockKey) {
	if g.sess.lost.Load() {
		return
	}
	if o := t.byLock[g.lock]; o != nil {
		t.removeLocked(o)
	}
	t.byLock[g.lock] = g
	if g.held {
		t.recent = append(t.recent, g)
		if len(t.recent) == 1 {
			nudge(t.checking)
		}
	} else {
		t.watchLocked(g)
	}
}

func (t *lockKeys) removeLocked(g *lockKey) {
	if g.gone {
		return
	}
	g.gone = true
	t.unwatchLocked(g)
	if g.longIndex > 0 {
		last := t.longHeld[len(t.longHeld)-1]
		t.longHeld[g.longIndex-1], last.longIndex = last, g.longIndex
		t.longHeld[len(t.longHeld)-1] = nil
		t.longHeld, g.longIndex = t.longHeld[:len(t.longHeld)-1], 0
	}
	if t.byLock[g.lock] == g {
		delete(t.byLock, g.lock)
	}
}

// watchLocked requests a watch of the key that g waits for, or of g's lock if g holds it. Beyond
// maxWatches it does nothing. Then polling by the caller and the regular checks must suffice.
func (t *lockKeys) watchLocked(g *lockKey) {
	if g.watch != 0 || len(t.byWatch) >= maxWatches {
		return
	}
	t.lastWatch++
	g.watch, g.watched = t.lastWatch, false
	t.byWatch[g.watch] = g
	t.create = append(t.create, g)
	nudge(t.sending)
}

func (t *lockKeys) unwatchLocked(g *lockKey) {
	if g.watch == 0 {
		return
	}
	delete(t.byWatch, g.watch)
	t.cancel = append(t.cancel, g.watch)
	g.watch, g.watched = 0, false
	nudge(t.sending)
}

// drop forgets all keys under n.
func (t *lockKeys) drop(n *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.byLock {
		if g.sess == n {
			t.removeLocked(g)
		}
	}
	t.dropSemsLocked(n)
	clear(t.unresolved) // requests in flight name a lease that is gone
}

// maxWatches is the maximum number of watches of one daemon.
const maxWatches = 16384

// hint sends a hint about g's key. The hint is lost if the stream is full.
func (s *Store) hint(k cache.HintKind, g *lockKey) {
	h := upstream.Hint{Kind: k, Key: g.lock}
	if g.permit != nil {
		h.Mode, h.Token = cache.Permit, g.token
	}
	s.hints.Send(h)
}
