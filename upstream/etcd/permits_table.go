package etcd

import (
	"strconv"

	"github.com/locksidecar/locksidecar/cache"
)

// sem is a semaphore of which this daemon has permits, or waits for some. It exists as long as it
// has a token. Its names never change; lockKeys.mu guards the rest.
type sem struct {
	key         string
	sess        *session
	held, queue string // prefixes of the keys of holders, and of waiters
	own         string // how our keys continue

	tokens map[uint64]*lockKey
	// slots has the tokens. A token's key is named by its slot. Slots are reused, because etcd's index
	// keeps each name until it is compacted, and counting visits all of them.
	slots []*lockKey
	free  []int
	nHeld int
	limit int64 // the limit in the last op
	seen  int64 // how many held permits or queued, of all hosts, when last read

	watchers []*lockKey // while a permit is held: one of each role but rolePermit
}

// unseen is more than the number of holders can be.
const unseen = int64(1) << 32

// role is the purpose of the watch of a semaphore's lock key.
type role uint8

const (
	rolePermit    role = iota // of a token that queues: its turn
	roleContended             // new keys in the queue
	roleRemoved               // the removal of our keys
)

// permit is the part of a lock key that only semaphores' keys have.
type permit struct {
	sem  *sem
	role role
	slot int
	// queueKey is the name of the key in the queue. lockKey.key is the name of the holder's key.
	queueKey  string
	value     string // of both
	limit     int64
	queued    bool
	uncertain bool  // its keys are not known, because an answer did not come
	checked   int64 // roleContended, roleRemoved: when it was checked last
	busy      bool  // an op that may take or end it is in progress: its name is not free
}

// semLocked returns the semaphore under n, and makes it if needed. It returns nil if the semaphore
// is known under another session.
func (s *Store) semLocked(n *session, key string) *sem {
	t := &s.lockKeys
	if m := t.sems[key]; m != nil {
		if m.sess != n {
			return nil
		}
		return m
	}
	m := &sem{key: key, sess: n, own: strconv.FormatInt(n.lease, 16) + "-",
		tokens: map[uint64]*lockKey{}, seen: unseen}
	m.held, m.queue = s.permits(key)
	t.sems[key] = m
	return m
}

// addLocked gives a token a slot. The token has no key yet.
func (m *sem) addLocked(token uint64) *lockKey {
	slot := len(m.slots)
	if n := len(m.free); n > 0 {
		slot, m.free = m.free[n-1], m.free[:n-1]
	} else {
		m.slots = append(m.slots, nil)
	}
	name := m.own + strconv.FormatInt(int64(slot), 16)
	g := &lockKey{lock: m.key, token: token, sess: m.sess, mode: cache.Permit,
		keyState: keyState{dir: m.held, key: m.held + name},
		permit:   &permit{sem: m, slot: slot, queueKey: m.queue + name, value: permitValue(token)}}
	m.tokens[token], m.slots[slot] = g, g
	return g
}

// slotLocked returns the token that has a key of ours, or nil.
func (m *sem) slotLocked(key, dir string) *lockKey {
	if len(key) <= len(dir)+len(m.own) || key[len(dir):len(dir)+len(m.own)] != m.own {
		return nil
	}
	slot, err := strconv.ParseInt(key[len(dir)+len(m.own):], 16, 32)
	if err != nil || slot < 0 || int(slot) >= len(m.slots) {
		return nil
	}
	return m.slots[slot]
}

// setHeldLocked notes that g's key is a holder's.
func (t *lockKeys) setHeldLocked(g *lockKey, rev, now int64) {
	p, m := g.permit, g.permit.sem
	t.unwatchLocked(g)
	g.rev, p.queued, p.uncertain = rev, false, false
	if g.held {
		return
	}
	g.held = true
	if m.nHeld++; m.nHeld > 1 || m.sess.lost.Load() {
		return
	}
	if len(t.recent) == 0 {
		nudge(t.checking)
	}
	for _, r := range []role{roleContended, roleRemoved} {
		m.watchers = append(m.watchers, &lockKey{lock: m.key, sess: m.sess, mode: cache.Permit,
			held: true, since: now, keyState: keyState{dir: m.held}, permit: &permit{sem: m, role: r}})
	}
	t.recent = append(t.recent, m.watchers...)
}

// setQueuedLocked notes that g's key is in the queue, or that there is none.
func (t *lockKeys) setQueuedLocked(g *lockKey, queued bool, rev int64) {
	p := g.permit
	if !queued {
		t.unwatchLocked(g)
	}
	g.rev, p.queued, p.uncertain = rev, queued, false
	t.notHeldLocked(g)
}

func (t *lockKeys) notHeldLocked(g *lockKey) {
	m := g.permit.sem
	if !g.held {
		return
	}
	g.held = false
	if m.nHeld--; m.nHeld == 0 {
		t.removeWatchersLocked(m)
	}
}

func (t *lockKeys) removeWatchersLocked(m *sem) {
	for _, w := range m.watchers {
		t.removeLocked(w)
	}
	m.watchers = nil
}

// setWaitingLocked requests a watch of the event that g waits for. This is a change of the key
// before its own or, for the first of the queue, the end of any permit.
func (t *lockKeys) setWaitingLocked(g *lockKey, pred string, predRev int64) {
	if g.pred != pred || g.predRev != predRev || !g.permit.queued {
		t.unwatchLocked(g)
	}
	g.pred, g.predRev, g.permit.queued = pred, predRev, true
	if !g.gone && !g.sess.lost.Load() {
		t.watchLocked(g)
	}
}

// forgetPermitLocked forgets a token that has no key and no request in flight. It keeps a token
// with an op in progress, for which forgetPermits decides at the end of the op.
func (t *lockKeys) forgetPermitLocked(g *lockKey) {
	m := g.permit.sem
	if m.tokens[g.token] != g || g.permit.busy {
		return
	}
	t.notHeldLocked(g)
	t.removeLocked(g)
	delete(m.tokens, g.token)
	m.slots[g.permit.slot] = nil
	m.free = append(m.free, g.permit.slot)
	if len(m.tokens) == 0 && t.sems[m.key] == m {
		delete(t.sems, m.key)
	}
}

// dropSemsLocked ends all watches of semaphores under n. The names stay until the session has
// ended.
func (t *lockKeys) dropSemsLocked(n *session) {
	for _, m := range t.sems {
		if m.sess != n {
			continue
		}
		for _, g := range m.tokens {
			t.removeLocked(g)
		}
		t.removeWatchersLocked(m)
	}
}

// forgetSems forgets the semaphores of sessions that have ended.
func (t *lockKeys) forgetSems() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.sems)
}
