package daemon

import (
	"slices"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// via is a request of the engine's own: the table's answer comes here instead of
// to a client. It is called without locks.
type via interface {
	answered(e *Engine, m *cache.Message, now int64, a *aftermath)
}

// many is an acquire-many under way: its keys are taken one after the other in
// their byte order, the same for every caller, so that two of them cannot wait
// for each other.
type many struct {
	s        *Session
	id       uint64
	q        cache.Acquire // all but the key
	keys     [][]byte
	spaces   []*space // of the keys
	ttls     []int64
	order    []int // of keys
	deadline int64 // of the wait; Forever for none

	mu     sync.Mutex
	at     int              // how many of order are held
	grants []protocol.Grant // by key
	shard  int              // of the key that is asked for
	over   bool             // withdrawn by the client
	lost   bool             // a key of it was lost meanwhile
	cancel []uint64         // ids of cancels that wait for its answer
}

// grantSize is what a grant takes in a frame at the most.
const grantSize = 1 + 6*9

func (s *Session) acquireMany(q *protocol.Request, now int64, a *aftermath) {
	if grantSize*len(q.Keys) > s.engine.settings().MaxFrame {
		s.refuse(q.ID, protocol.Overlong, "so many grants do not fit into a frame", a)
		return
	}
	m := &many{s: s, id: q.ID, deadline: cache.Forever, grants: make([]protocol.Grant, len(q.Keys))}
	wait, all := cache.Forever, s.engine.routes.Load()
	for _, k := range q.Keys {
		sp := route(all, k)
		if !sp.allows(&s.peer) {
			s.refuse(q.ID, protocol.Denied, denied, a)
			return
		}
		ttl, most, msg := sp.terms(q)
		if msg != "" {
			s.refuse(q.ID, protocol.Invalid, msg, a)
			return
		}
		wait = min(wait, most)
		m.spaces, m.ttls = append(m.spaces, sp), append(m.ttls, ttl)
	}
	m.q = cache.Acquire{Owner: q.Owner, Mode: cache.Mode(q.Mode), Wait: wait, Fixed: q.Flags&protocol.FlagFixed != 0}
	m.q.Re = cache.Request{Session: s.core, ID: q.ID, Via: m}
	if wait < cache.Forever-now {
		m.deadline = now + wait
	}
	for n, k := range q.Keys {
		m.keys = append(m.keys, slices.Clone(k))
		m.order = append(m.order, n)
	}
	slices.SortFunc(m.order, func(x, y int) int { return slices.Compare(m.keys[x], m.keys[y]) })
	for n := range m.order[1:] {
		if slices.Equal(m.keys[m.order[n]], m.keys[m.order[n+1]]) {
			s.refuse(q.ID, protocol.Invalid, "a key is named twice", a)
			return
		}
	}
	s.manyAdd(m)
	m.ask(s.engine, now, a)
}

// ask goes for the next key.
func (m *many) ask(e *Engine, now int64, a *aftermath) {
	m.mu.Lock()
	n := m.order[m.at]
	key := m.keys[n]
	m.shard = shardOf(key)
	q := m.q
	q.NS, q.TTL = m.spaces[n].table, m.ttls[n]
	if q.Wait > 0 && m.deadline != cache.Forever {
		q.Wait = max(0, m.deadline-now)
	}
	q.Key, q.Draining = key, e.draining.Load()
	i := m.shard
	m.mu.Unlock()
	sh := e.lock(i)
	sh.table.Acquire(&q, now, &sh.out)
	e.unlock(sh, i, now, a)
}

// answered is the table's answer to the key that was asked for.
func (m *many) answered(e *Engine, msg *cache.Message, now int64, a *aftermath) {
	if msg.Kind == cache.MsgGranted {
		m.s.mu.Lock()
		g := e.stateGrant(m.s, msg, now)
		m.s.mu.Unlock()
		m.mu.Lock()
		m.grants[m.order[m.at]] = g
		m.at++
		all, over, lost := m.at == len(m.keys), m.over, m.lost
		m.mu.Unlock()
		switch {
		case over:
			m.giveBack(e, now, a)
			m.fail(cache.CodeCanceled, "withdrawn", a)
		case lost:
			m.giveBack(e, now, a)
			m.fail(cache.CodeUnavailable, "a key was lost while the others were waited for", a)
		case all:
			m.succeed(e, now, a)
		default:
			m.ask(e, now, a)
		}
		return
	}
	code, text := msg.Code, failText(msg)
	if code == cache.CodeBusy && m.deadline != cache.Forever && m.q.Wait > 0 {
		code, text = cache.CodeTimeout, "the wait ran out" // its last moment was a try
	}
	m.giveBack(e, now, a)
	m.fail(code, text, a)
}

// succeed grants all keys as they stand now: the first of them were taken a while
// ago, and have been renewed since, or lost, or released by the client.
func (m *many) succeed(e *Engine, now int64, a *aftermath) {
	held := true
	for n, k := range m.keys {
		i := shardOf(k)
		sh := e.lock(i)
		msg, ok := sh.table.Restate(m.s.core, k, m.q.Owner, m.grants[n].Fence, now, &sh.out)
		e.unlock(sh, i, now, a)
		if held = held && ok; ok {
			m.s.mu.Lock()
			m.grants[n] = e.stateGrant(m.s, &msg, now)
			m.s.mu.Unlock()
		}
	}
	if held && m.commit(a) {
		return
	}
	m.giveBack(e, now, a)
	m.fail(cache.CodeUnavailable, "a key was lost while the others were waited for", a)
}

// commit says that it is done, unless a key has been lost up to this moment: a
// later loss is told behind it.
func (m *many) commit(a *aftermath) bool {
	m.s.mu.Lock()
	m.mu.Lock()
	lost := m.lost
	m.mu.Unlock()
	if !lost && !m.s.killed && !m.s.ended.Load() {
		m.s.out = protocol.AppendGrants(m.s.out, m.id, m.grants)
	}
	m.s.mu.Unlock()
	if lost {
		return false
	}
	m.finish(a, false, func(b []byte) []byte { return b })
	return true
}

func (m *many) fail(c cache.Code, text string, a *aftermath) {
	index := uint64(m.order[min(m.at, len(m.order)-1)])
	m.finish(a, c == cache.CodeCanceled, func(b []byte) []byte {
		return protocol.AppendManyError(b, m.id, protocol.Code(c), text, index)
	})
}

// finish answers the request, and then those who wanted it withdrawn.
func (m *many) finish(a *aftermath, canceled bool, frame func([]byte) []byte) {
	m.s.manyDrop(m) // no cancel finds it any more
	m.s.write(a, frame)
	m.mu.Lock()
	cancels := m.cancel
	m.mu.Unlock()
	for _, id := range cancels {
		m.s.write(a, func(b []byte) []byte { return protocol.AppendCanceled(b, id, canceled) })
	}
}

// lostMany notes that a key which an acquire-many has taken is gone, so that it
// will fail. Called with s.mu held.
func (s *Session) lostMany(msg *cache.Message) {
	for _, m := range s.manys {
		m.mu.Lock()
		for _, n := range m.order[:m.at] {
			if m.grants[n].Fence == msg.Fence && m.q.Owner == msg.Owner && string(m.keys[n]) == msg.Key {
				m.lost = true
			}
		}
		m.mu.Unlock()
	}
}

// giveBack releases what has been taken so far.
func (m *many) giveBack(e *Engine, now int64, a *aftermath) {
	for n := m.at - 1; n >= 0; n-- {
		k := m.order[n]
		i := shardOf(m.keys[k])
		sh := e.lock(i)
		sh.table.Release(&cache.Release{Re: cache.Request{Session: m.s.core, Via: nobody{}}, Key: m.keys[k],
			Owner: m.q.Owner, Fence: m.grants[k].Fence, Async: true}, now, &sh.out)
		e.unlock(sh, i, now, a)
	}
}

// nobody is a request whose answer is not wanted.
type nobody struct{}

func (nobody) answered(*Engine, *cache.Message, int64, *aftermath) {}

func (s *Session) manyAdd(m *many) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.manys = append(s.manys, m)
}

func (s *Session) manyDrop(m *many) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := slices.Index(s.manys, m); n >= 0 {
		s.manys = slices.Delete(s.manys, n, n+1)
	}
}

// cancelMany withdraws an acquire-many; false when there is none by that id.
func (s *Session) cancelMany(q *protocol.Request, now int64, a *aftermath) bool {
	s.mu.Lock()
	var m *many
	for _, x := range s.manys {
		if x.id == q.Target {
			m = x
			m.mu.Lock()
			m.over = true
			m.cancel = append(m.cancel, q.ID)
			m.mu.Unlock()
		}
	}
	s.mu.Unlock()
	if m == nil {
		return false
	}
	m.mu.Lock()
	i := m.shard
	m.mu.Unlock()
	e := s.engine
	sh := e.lock(i)
	sh.table.CancelVia(s.core, m, now, &sh.out)
	e.unlock(sh, i, now, a)
	return true
}

// manyReleases is a release-many under way.
type manyReleases struct {
	s     *Session
	id    uint64
	mu    sync.Mutex
	left  int // guarded by mu
	codes []protocol.Code
}

// oneRelease is one key of it.
type oneRelease struct {
	all *manyReleases
	n   int
}

func (s *Session) releaseMany(q *protocol.Request, now int64, a *aftermath) {
	e := s.engine
	all := &manyReleases{s: s, id: q.ID, left: len(q.Keys), codes: make([]protocol.Code, len(q.Keys))}
	for n, k := range q.Keys {
		i := shardOf(k)
		sh := e.lock(i)
		sh.table.Release(&cache.Release{Re: cache.Request{Session: s.core, ID: q.ID, Via: oneRelease{all, n}}, Key: k,
			Owner: q.Owner, Fence: q.Fences[n], All: q.Flags&protocol.FlagAll != 0,
			Async: q.Flags&protocol.FlagAsync != 0}, now, &sh.out)
		e.unlock(sh, i, now, a)
	}
}

func (o oneRelease) answered(_ *Engine, m *cache.Message, _ int64, a *aftermath) {
	all := o.all
	all.mu.Lock()
	if m.Kind == cache.MsgFailed {
		all.codes[o.n] = protocol.Code(m.Code)
	}
	all.left--
	done := all.left == 0
	all.mu.Unlock()
	if done {
		all.s.write(a, func(b []byte) []byte { return protocol.AppendCodes(b, all.id, all.codes) })
	}
}
