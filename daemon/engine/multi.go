package engine

import (
	"errors"
	"slices"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// errAlone refuses a multi-acquire that has a degraded grant, because a reload has set outage:
// fail.
var errAlone = errors.New("the store is down, and a reload has ended grants without it")

// multiAcquire is a multi-acquire in progress. First it tries all its keys at once, as one batch
// for the store. That is usually enough. If a key is not free, it releases the keys that come later
// in byte order, waits for that key, and then tries the rest again. So a waiting multi-acquire
// holds only keys that come earlier in an order that is the same for every caller, and no two can
// wait for each other.
type multiAcquire struct {
	several
	order []int // the indices of the keys, in byte order of the keys

	// guarded by mu
	at        int              // an index in order: the keys before it are held
	tries     int              // number of tries that are not answered
	refusals  []refusal        // of failed tries, by key
	grants    []protocol.Grant // by key
	held      []bool           // by key
	shard     int              // of the key that m waits for
	withdrawn bool             // the client has canceled the request
	lost      bool             // a key was lost after it had been granted
}

// try is the try of one key of a multi-acquire.
type try struct {
	m *multiAcquire
	n int
}

// grantSize is the largest size of a grant in a frame.
const grantSize = 1 + 6*9

func (s *Session) acquireMulti(q *protocol.Request, now int64, a *followUp) {
	if grantSize*len(q.Keys) > s.frameLimit() {
		s.refuse(q.ID, protocol.Overlong, "so many grants do not fit into a frame", a)
		return
	}
	m := &multiAcquire{grants: make([]protocol.Grant, len(q.Keys)),
		refusals: make([]refusal, len(q.Keys)), held: make([]bool, len(q.Keys))}
	var ok bool
	if m.order, ok = m.begin(s, q, now, a); !ok {
		return
	}
	m.q.Re.InternalReply = m
	s.addMulti(m)
	m.ask(s.engine, now, a)
}

// ask requests the keys that are not held: all at once with tries, or with a wait if only one is
// left.
func (m *multiAcquire) ask(e *Engine, now int64, a *followUp) {
	rest := m.order[m.at:]
	if len(rest) == 1 {
		m.wait(e, now, a)
		return
	}
	m.mu.Lock()
	m.tries = len(rest)
	m.mu.Unlock()
	for _, n := range rest {
		q := m.q
		q.Wait, q.Re.InternalReply = 0, try{m, n}
		m.askOne(e, n, &q, now, a, func(*shard) {})
	}
}

func (t try) record(e *Engine, msg *cache.Message, now int64, _ *followUp) {
	t.m.recordGrant(e, t.n, msg, now)
}

// answered receives the table's answer to a try.
func (t try) answered(e *Engine, msg *cache.Message, now int64, a *followUp) {
	m := t.m
	m.mu.Lock()
	if msg.Kind != cache.MsgGranted {
		m.refusals[t.n] = refusal{msg.Code, failText(msg)}
	}
	m.tries--
	done := m.tries == 0
	m.mu.Unlock()
	if done {
		m.triesAnswered(e, now, a)
	}
}

func (m *multiAcquire) record(e *Engine, msg *cache.Message, now int64, _ *followUp) {
	m.mu.Lock()
	n := m.order[m.at]
	m.mu.Unlock()
	m.recordGrant(e, n, msg, now)
}

// recordGrant records the grant of key n, if msg is one. The shard's mutex is held, so a later loss
// of the grant finds it: see loseInMulti.
func (m *multiAcquire) recordGrant(e *Engine, n int, msg *cache.Message, now int64) {
	if msg.Kind != cache.MsgGranted {
		return
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	g := e.stateGrant(m.s, msg, now)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.grants[n], m.held[n] = g, true
}

// triesAnswered continues m when all tries are answered.
func (m *multiAcquire) triesAnswered(e *Engine, now int64, a *followUp) {
	if m.endIfOver(e, now, a) {
		return
	}
	m.mu.Lock()
	missing := func(n int) bool { return !m.held[n] }
	first := slices.IndexFunc(m.order, missing)
	if first < 0 {
		m.at = len(m.order)
		m.mu.Unlock()
		m.succeed(e, now, a)
		return
	}
	// A refusal that a wait cannot change ends the request at once, whichever key it concerns.
	bad := slices.IndexFunc(m.order, func(n int) bool {
		return missing(n) && (m.refusals[n].code != protocol.Busy || m.q.Wait == 0)
	})
	m.at = max(first, bad)
	m.mu.Unlock()
	if bad >= 0 {
		why := m.refusals[m.order[bad]]
		m.giveBack(e, 0, now, a)
		m.fail(why.code, why.text, now, a)
		return
	}
	m.giveBack(e, first+1, now, a)
	m.wait(e, now, a)
}

// endIfOver ends m, and releases its keys, if the client has withdrawn it or a key was lost. It
// reports whether it has done so.
func (m *multiAcquire) endIfOver(e *Engine, now int64, a *followUp) bool {
	m.mu.Lock()
	withdrawn, lost := m.withdrawn, m.lost
	m.mu.Unlock()
	switch {
	case withdrawn:
		m.giveBack(e, 0, now, a)
		m.fail(protocol.Canceled, "withdrawn", now, a)
	case lost:
		m.failLost(e, now, a)
	}
	return withdrawn || lost
}

// wait requests the first key that is not held, and waits for it.
func (m *multiAcquire) wait(e *Engine, now int64, a *followUp) {
	m.mu.Lock()
	q, n := m.q, m.order[m.at]
	m.shard = shardOf(m.keys[n])
	m.mu.Unlock()
	m.askOne(e, n, &q, now, a, func(sh *shard) {
		m.mu.Lock()
		withdrawn := m.withdrawn
		m.mu.Unlock()
		// The client may have canceled the request since the last check. Then its cancel has found
		// nothing to withdraw.
		if withdrawn {
			sh.table.CancelInternal(m.s.core, m, now, &sh.out)
		}
	})
}

// answered receives the table's answer to the key for which m has waited.
func (m *multiAcquire) answered(e *Engine, msg *cache.Message, now int64, a *followUp) {
	if msg.Kind != cache.MsgGranted {
		code, text := msg.Code, failText(msg)
		if code == protocol.Busy && m.deadline != cache.Forever && m.q.Wait > 0 {
			// The wait was over when this key was requested, so that was a try.
			code, text = protocol.Timeout, "the wait ran out"
		}
		m.giveBack(e, 0, now, a)
		m.fail(code, text, now, a)
		return
	}
	m.mu.Lock()
	m.at++
	all := m.at == len(m.order)
	m.mu.Unlock()
	switch {
	case m.endIfOver(e, now, a):
	case all:
		m.succeed(e, now, a)
	default:
		m.ask(e, now, a)
	}
}

// succeed answers the client with all grants, with their present values. The first keys may have
// been granted a while ago: since then they may have been renewed, lost, or released by the client,
// or a reload may have denied them.
func (m *multiAcquire) succeed(e *Engine, now int64, a *followUp) {
	held := true
	for n, k := range m.keys {
		sh, rt := e.lockKey(k)
		code, err := rt.checkAcquire(&m.s.peer, m.q.Mode, m.ttls[n])
		msg, ok := sh.table.Restate(m.s.core, k, m.q.Owner, m.grants[n].Fence, now, &sh.out)
		e.carryOutAndUnlock(sh, now, a)
		if code == protocol.OK && ok && msg.Degraded && !rt.Local {
			code, err = protocol.Unavailable, errAlone
		}
		if code != protocol.OK {
			m.mu.Lock()
			m.at = slices.Index(m.order, n)
			m.mu.Unlock()
			m.giveBack(e, 0, now, a)
			m.fail(code, err.Error(), now, a)
			return
		}
		if held = held && ok; ok {
			m.s.mu.Lock()
			m.grants[n] = e.stateGrant(m.s, &msg, now)
			m.s.mu.Unlock()
		}
	}
	if held && m.commit(a) {
		return
	}
	m.failLost(e, now, a)
}

func (m *multiAcquire) failLost(e *Engine, now int64, a *followUp) {
	m.giveBack(e, 0, now, a)
	m.fail(protocol.Unavailable, "a key was lost while the others were waited for", now, a)
}

// commit ends m as granted, unless a key has been lost before. It reports whether it has done so. A
// later loss is pushed to the client after the grant.
func (m *multiAcquire) commit(a *followUp) bool {
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
	m.s.endSpan(m.id, spanEnd{outcome: cache.Outcome(protocol.OK)})
	m.finish(a, false, func(b []byte) []byte { return b })
	return true
}

// fail answers the client with an error that names the key at which m has stopped.
func (m *multiAcquire) fail(c protocol.Code, text string, now int64, a *followUp) {
	for _, class := range m.classes {
		class.refused.add(c)
	}
	index := m.order[min(m.at, len(m.order)-1)]
	m.noteFailed(c, index, now, a)
	m.finish(a, c == protocol.Canceled, func(b []byte) []byte {
		return protocol.AppendManyError(b, m.id, c, text, uint64(index))
	})
}

// loseInMulti records that a multi-acquire has lost a key that it had been granted, so that the
// request fails. It is called with s.mu held.
func (s *Session) loseInMulti(msg *cache.Message) {
	for _, m := range s.multiAcquires {
		m.mu.Lock()
		for n := range m.keys {
			if m.held[n] && m.grants[n].Fence == msg.Fence && m.q.Owner == msg.Owner &&
				string(m.keys[n]) == msg.Key {
				m.lost = true
				// Without a fence, giveBack would release the owner's next hold of the key.
				m.held[n] = msg.Fence != 0
			}
		}
		m.mu.Unlock()
	}
}

// giveBack releases the keys that m has been granted, from an index of its order on.
func (m *multiAcquire) giveBack(e *Engine, from int, now int64, a *followUp) {
	for _, n := range slices.Backward(m.order[from:]) {
		sh := e.lock(shardOf(m.keys[n]))
		m.mu.Lock() // with the shard's mutex held, so that the key is not lost in between
		held, fence := m.held[n], m.grants[n].Fence
		m.held[n] = false
		m.mu.Unlock()
		if held {
			sh.table.Release(&cache.Release{Key: m.keys[n], Owner: m.q.Owner, Fence: fence,
				Re:    cache.Request{Session: m.s.core, InternalReply: discardReply{}},
				Async: true, Cause: cache.CauseGivenBack}, now, &sh.out)
		}
		e.carryOutAndUnlock(sh, now, a)
	}
}

// discardReply is the internal reply of a request whose answer is not needed.
type discardReply struct{}

func (discardReply) answered(*Engine, *cache.Message, int64, *followUp) {}

func (s *Session) addMulti(m *multiAcquire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.multiAcquires = append(s.multiAcquires, m)
}

// withdraw ends the wait of m, whose client has canceled it. If m has tries in progress, it ends
// when they are answered.
func (m *multiAcquire) withdraw(e *Engine, now int64, a *followUp) {
	m.mu.Lock()
	m.withdrawn = true
	i := m.shard
	m.mu.Unlock()
	sh := e.lock(i)
	sh.table.CancelInternal(m.s.core, m, now, &sh.out)
	e.carryOutAndUnlock(sh, now, a)
}

// multiRelease is a release of several keys in progress.
type multiRelease struct {
	s     *Session
	id    uint64
	mu    sync.Mutex
	left  int // guarded by mu
	codes []protocol.Code
}

// oneRelease is the internal reply for one key of a multiRelease.
type oneRelease struct {
	all *multiRelease
	n   int
}

func (s *Session) releaseMulti(q *protocol.Request, now int64, a *followUp) {
	e := s.engine
	all := &multiRelease{s: s, id: q.ID, left: len(q.Keys),
		codes: make([]protocol.Code, len(q.Keys))}
	for n, k := range q.Keys {
		sh := e.lock(shardOf(k))
		sh.table.Release(&cache.Release{Key: k, Owner: q.Owner, Fence: q.Fences[n],
			Re:  cache.Request{Session: s.core, ID: q.ID, InternalReply: oneRelease{all, n}},
			All: q.Flags&protocol.FlagAll != 0, Async: q.Flags&protocol.FlagAsync != 0},
			now, &sh.out)
		e.carryOutAndUnlock(sh, now, a)
	}
}

func (o oneRelease) answered(_ *Engine, m *cache.Message, _ int64, a *followUp) {
	all := o.all
	all.mu.Lock()
	if m.Kind == cache.MsgFailed {
		all.codes[o.n] = m.Code
	}
	all.left--
	done := all.left == 0
	all.mu.Unlock()
	if done {
		all.s.write(a, func(b []byte) []byte { return protocol.AppendCodes(b, all.id, all.codes) })
	}
}
