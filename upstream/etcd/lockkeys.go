package etcd

import (
	"sync"

	"github.com/locksidecar/locksidecar/cache"
)

// lockKey describes one key that this Store has at etcd. The fields that identify it never change; the others are
// guarded by lockKeys.mu.
type lockKey struct {
	lock, dir, key string
	token          uint64
	sess           *session
	rev            int64 // create revision

	mode    cache.Mode
	held    bool  // else it queues
	leaving bool  // its removal has been asked for
	gone    bool  // it is in the table no more
	since   int64 // held: since when, on the boot clock
	old     int   // its place in lockKeys.old, from 1; 0 when it is not there

	// Of one that queues: the key whose change is waited for.
	pred    string
	predRev int64 // its create revision
	predMod int64 // its revision

	permit *permit // of a semaphore's; nil of a lock's

	watch   int64 // the number of its watch; 0 when it has none
	watched bool  // … which stands at the server
}

// doubt is a token whose acquire has not been answered: it may still be on its way.
type doubt struct {
	lock   string
	token  uint64
	permit bool
}

// lockKeys is the table of this Store's keys, at most one for each lock. It serves the watches, and it saves requests
// of repeated ops; a grant never follows from it alone.
type lockKeys struct {
	mu     sync.Mutex
	byLock map[string]*lockKey
	sems   map[string]*sem // semaphores
	doubts map[doubt]int64 // with the fence that the request compared
	young  []*lockKey      // held, in the order of since, until they are worth a watch
	old    []*lockKey      // held for longer: looked at in turn
	next   int             // place in old

	byWatch    map[int64]*lockKey
	lastWatch  int64
	question   int64      // the number of the watch for questions of other daemons; 0 when there is none
	questionOf int64      // the lease of the session to which the watched questions are addressed
	create     []*lockKey // watches to be made
	cancel     []int64    // numbers of the watches to cancel
	check      []*lockKey // watches that have just been made: something may have happened before
	sending    chan struct{}
	looking    chan struct{}
}

func (t *lockKeys) init() {
	t.byLock, t.doubts, t.byWatch = map[string]*lockKey{}, map[doubt]int64{}, map[int64]*lockKey{}
	t.sems = map[string]*sem{}
	t.sending, t.looking = make(chan struct{}, 1), make(chan struct{}, 1)
}

// empty says that nothing of ours can stand at the store.
func (t *lockKeys) empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byLock) == 0 && len(t.sems) == 0 && len(t.doubts) == 0
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// findLocked returns the lock key of a token under n; nil if there is none.
func (t *lockKeys) findLocked(n *session, lock string, token uint64) *lockKey {
	if g := t.byLock[lock]; g != nil && g.token == token && g.sess == n {
		return g
	}
	return nil
}

// putLocked adds a key that exists. It removes another key of the same lock, because a daemon has only one.
func (t *lockKeys) putLocked(g *lockKey) {
	if g.sess.lost.Load() {
		return
	}
	if o := t.byLock[g.lock]; o != nil {
		t.removeLocked(o)
	}
	t.byLock[g.lock] = g
	if g.held {
		t.young = append(t.young, g)
		if len(t.young) == 1 {
			nudge(t.looking)
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
	if g.old > 0 {
		last := t.old[len(t.old)-1]
		t.old[g.old-1], last.old = last, g.old
		t.old[len(t.old)-1] = nil
		t.old, g.old = t.old[:len(t.old)-1], 0
	}
	if t.byLock[g.lock] == g {
		delete(t.byLock, g.lock)
	}
}

// watchLocked has what g waits for, or g's lock when it is held, watched. Beyond
// maxWatches it is not: polling and looking in turn have to do.
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

// drop forgets all that stood under n.
func (t *lockKeys) drop(n *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.byLock {
		if g.sess == n {
			t.removeLocked(g)
		}
	}
	t.dropSemsLocked(n)
	clear(t.doubts) // what is on its way comes for a lease that is no more
}
