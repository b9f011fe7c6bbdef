package etcd

import (
	"strconv"

	"github.com/locksidecar/locksidecar/cache"
)

// sem is a semaphore of which this daemon has or wants permits. It stays as long as
// there is a token of it. Its names never change; the rest is guarded by lockKeys.mu.
type sem struct {
	key         string
	sess        *session
	held, queue string // what the keys of holders begin with, and of those that queue
	own         string // what of ours follows

	tokens map[uint64]*lockKey
	// A token's key is named by its slot, and slots are used again: etcd's index keeps
	// each name that ever was, until it is compacted, and counting goes over them.
	slots []*lockKey
	free  []int
	nHeld int
	limit int64 // as said last
	seen  int64 // holders and those that queue, all hosts', at the last look

	wanted, gone *lockKey // watched while a permit is held: see role
}

// unseen is more than there can be.
const unseen = int64(1) << 32

// role is what a lock key about a semaphore is watched for.
type role uint8

const (
	rolePermit role = iota // a token's: while it queues, for its turn
	roleWanted             // new ones in the queue
	roleGone               // keys of ours that are removed
)

// permit is what a lock key of a semaphore has besides.
type permit struct {
	sem    *sem
	role   role
	slot   int
	place  string // name of the key while it queues; lockKey.key is that of the holder's key
	value  string // of both
	limit  int64
	queued bool
	unsure bool  // what stands of it is not known: an answer did not come
	looked int64 // roleWanted, roleGone: when it was looked at last
	busy   bool  // an op that may take or end it is under way: its name is not free
}

// semLocked finds or makes a semaphore under n; nil when it is known under another
// session.
func (s *Store) semLocked(n *session, key string) *sem {
	t := &s.lockKeys
	if m := t.sems[key]; m != nil {
		if m.sess != n {
			return nil
		}
		return m
	}
	m := &sem{key: key, sess: n, own: strconv.FormatInt(n.lease, 16) + "-", tokens: map[uint64]*lockKey{}, seen: unseen}
	m.held, m.queue = s.permits(key)
	t.sems[key] = m
	return m
}

// addLocked gives a token a slot. Nothing stands of it yet.
func (m *sem) addLocked(token uint64) *lockKey {
	slot := len(m.slots)
	if n := len(m.free); n > 0 {
		slot, m.free = m.free[n-1], m.free[:n-1]
	} else {
		m.slots = append(m.slots, nil)
	}
	name := m.own + strconv.FormatInt(int64(slot), 16)
	g := &lockKey{lock: m.key, dir: m.held, key: m.held + name, token: token, sess: m.sess, mode: cache.Permit,
		permit: &permit{sem: m, slot: slot, place: m.queue + name, value: permitValue(token)}}
	m.tokens[token], m.slots[slot] = g, g
	return g
}

// slotLocked finds the token that has a key of ours.
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

// heldLocked takes note that g is a holder's.
func (t *lockKeys) heldLocked(g *lockKey, rev, now int64) {
	p, m := g.permit, g.permit.sem
	t.unwatchLocked(g)
	g.rev, p.queued, p.unsure = rev, false, false
	if g.held {
		return
	}
	g.held = true
	if m.nHeld++; m.nHeld > 1 || m.sess.lost.Load() {
		return
	}
	watcher := func(r role) *lockKey {
		w := &lockKey{lock: m.key, dir: m.held, sess: m.sess, mode: cache.Permit, held: true, since: now, permit: &permit{sem: m, role: r}}
		t.young = append(t.young, w)
		return w
	}
	if len(t.young) == 0 {
		nudge(t.looking)
	}
	m.wanted, m.gone = watcher(roleWanted), watcher(roleGone)
}

// standsLocked takes note that g's key queues, or that there is none.
func (t *lockKeys) standsLocked(g *lockKey, queued bool, rev int64) {
	p := g.permit
	if !queued {
		t.unwatchLocked(g)
	}
	g.rev, p.queued, p.unsure = rev, queued, false
	t.notHeldLocked(g)
}

func (t *lockKeys) notHeldLocked(g *lockKey) {
	m := g.permit.sem
	if !g.held {
		return
	}
	g.held = false
	if m.nHeld--; m.nHeld == 0 && m.wanted != nil {
		t.removeLocked(m.wanted)
		t.removeLocked(m.gone)
		m.wanted, m.gone = nil, nil
	}
}

// waitsLocked has what g waits for watched: the key before its own, or, for the
// first of the queue, any permit's end.
func (t *lockKeys) waitsLocked(g *lockKey, pred string, predRev int64) {
	if g.pred != pred || g.predRev != predRev || !g.permit.queued {
		t.unwatchLocked(g)
	}
	g.pred, g.predRev, g.permit.queued = pred, predRev, true
	if !g.gone && !g.sess.lost.Load() {
		t.watchLocked(g)
	}
}

// endLocked forgets a token of which nothing stands and nothing can come, unless an
// op about it is under way: what that leaves is seen at its end.
func (t *lockKeys) endLocked(g *lockKey) {
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

// dropSemsLocked ends all watching for what stood under n. The names stay, until the
// session is known to be gone.
func (t *lockKeys) dropSemsLocked(n *session) {
	for _, m := range t.sems {
		if m.sess != n {
			continue
		}
		for _, g := range m.tokens {
			t.removeLocked(g)
		}
		if m.wanted != nil {
			t.removeLocked(m.wanted)
			t.removeLocked(m.gone)
			m.wanted, m.gone = nil, nil
		}
	}
}

// enter forgets the semaphores of sessions that are gone.
func (t *lockKeys) enter() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.sems)
}
