package engine

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// anyAcquire is an acquire-any in progress. It tries its keys one by one as long as this host can
// answer without a store, and begins with a key that the host can grant. Once a store has to
// answer, and has not granted the key, it tries all remaining keys at once. Then it waits for all
// keys.
//
// Each key is an acquire of its own in its lock table, a part. The tables grant at most one part:
// see Claim. So there is never a second hold that would have to be given back. A lease that a store
// grants for another part serves the next waiter of that key or is released.
type anyAcquire struct {
	several

	// decided means that m has been granted or has failed. Claim sets it, for one caller only, which
	// then ends m.
	decided atomic.Bool

	// Used by one goroutine at a time: see beginRequests.
	start  int  // the key that is tried first
	tried  int  // number of keys that have been tried, from start on
	asking bool // a store has been asked for a key

	// guarded by mu
	waiting   bool      // the parts wait for their keys; before, they try
	open      int       // parts that are not answered, and one more while parts are being requested
	parts     []bool    // by key: requested and not answered
	refusals  []refusal // by key
	left      int64     // the shortest time that is known until a key is free; -1 for none
	decidedBy int       // the key whose answer has decided m; -1 for none
	granted   bool      // that answer is a grant
	concluded bool      // that answer has been passed on to the client
}

// part is the acquire of one key of an anyAcquire.
type part struct {
	*anyAcquire
	n    int
	wait bool // it waits for the key; else it tries
}

// Claim implements cache.Choice.
func (m *anyAcquire) Claim() bool { return m.decided.CompareAndSwap(false, true) }

// acquireAny begins an acquire-any.
func (s *Session) acquireAny(q *protocol.Request, now int64, a *followUp) {
	m := &anyAcquire{left: -1, decidedBy: -1, open: 1,
		parts: make([]bool, len(q.Keys)), refusals: make([]refusal, len(q.Keys))}
	if _, ok := m.begin(s, q, now, a); !ok {
		return
	}
	s.mu.Lock()
	s.anyAcquires = append(s.anyAcquires, m)
	s.mu.Unlock()
	m.start = m.first(s.engine, now)
	m.ask(s.engine, now, a)
}

// first returns the index of the key to begin with: a key that the owner holds, or else one whose
// lease is idle on this host. Without either, each request begins with another key.
func (m *anyAcquire) first(e *Engine, now int64) int {
	best, have := int(e.anyStart.Add(1)%uint64(len(m.keys))), cache.HereNothing
	for i := range m.keys {
		n := (best + i) % len(m.keys)
		sh, _ := e.lockKey(m.keys[n])
		q := m.q
		q.Key, q.TTL = m.keys[n], m.ttls[n]
		here := sh.table.Here(&q, now)
		sh.mu.Unlock()
		if here > have {
			best, have = n, here
		}
	}
	return best
}

// proceed continues m when no part is left that could still be answered.
func (m *anyAcquire) proceed(e *Engine, now int64, a *followUp) {
	if m.beginRequests() {
		m.ask(e, now, a)
	}
}

// beginRequests reports whether m has to request more parts: all requested parts are answered, and
// m is not decided. If so, it counts the caller in open, so that no other goroutine requests parts
// until the caller subtracts itself.
func (m *anyAcquire) beginRequests() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open > 0 || m.decided.Load() {
		return false
	}
	m.open++
	return true
}

// ask requests the next parts until a part is not answered at once, or m is decided. The caller is
// counted in open.
func (m *anyAcquire) ask(e *Engine, now int64, a *followUp) {
	for more := true; more; more = m.beginRequests() {
		m.mu.Lock()
		waited := m.waiting // all parts have waited for their keys, without success
		m.waiting = m.tried == len(m.keys)
		m.mu.Unlock()
		switch {
		case m.tried < len(m.keys):
			m.try(e, now, a)
		case m.q.Wait == 0 || waited:
			m.refuse(now, a)
			return
		default:
			for i := 0; i < len(m.keys) && !m.decided.Load(); i++ {
				m.request(e, (m.start+i)%len(m.keys), now, a)
			}
		}
		m.mu.Lock()
		m.open--
		m.mu.Unlock()
	}
}

// try tries the next keys, until a store has to answer. If a store has been asked before, it tries
// all the keys that are left.
func (m *anyAcquire) try(e *Engine, now int64, a *followUp) {
	one := !m.asking
	for m.tried < len(m.keys) && !m.decided.Load() {
		n := (m.start + m.tried) % len(m.keys)
		m.tried++
		m.request(e, n, now, a)
		m.mu.Lock()
		asked := m.parts[n]
		m.mu.Unlock()
		if m.asking = m.asking || asked; asked && one {
			return
		}
	}
}

// request requests the part of key n.
func (m *anyAcquire) request(e *Engine, n int, now int64, a *followUp) {
	q := m.q
	m.mu.Lock()
	p := part{m, n, m.waiting}
	q.Re.InternalReply = p
	if m.q.Wait > 0 {
		q.TryUntil = m.deadline
	}
	if !p.wait {
		q.Wait = 0
	}
	m.open++
	m.parts[n] = true
	m.mu.Unlock()
	m.askOne(e, n, &q, now, a, func(sh *shard) {
		// m may have been decided since the last check, and endParts may have run before this part was
		// in the queue.
		if m.decided.Load() {
			sh.table.CancelInternal(m.s.core, p, now, &sh.out)
		}
	})
}

// record records the answer to a part. It passes a grant on to the client at once, so that a later
// loss comes after it.
func (p part) record(e *Engine, msg *cache.Message, now int64, a *followUp) {
	m, granted := p.anyAcquire, msg.Kind == cache.MsgGranted
	if granted {
		e.send(msg, now, a)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open--
	m.parts[p.n] = false
	if !granted {
		m.refusals[p.n] = p.refusal(msg)
		if msg.Code == protocol.Busy && msg.Left >= 0 && (m.left < 0 || msg.Left < m.left) {
			m.left = msg.Left
		}
	}
	if granted || p.fails(m.refusals[p.n].code) && m.Claim() {
		m.decidedBy, m.granted = p.n, granted
	}
}

func (p part) refusal(msg *cache.Message) refusal {
	switch {
	case p.wait && msg.Code == protocol.Busy:
		// The wait was over when this key was requested, so that was a try.
		return refusal{protocol.Timeout, "the wait ran out"}
	case msg.Code == protocol.Busy:
		return refusal{msg.Code, "each of the keys is held, or other clients were before this one"}
	case msg.Code == protocol.Timeout || msg.Code == protocol.Draining:
		return refusal{msg.Code, failText(msg)}
	}
	return refusal{msg.Code, fmt.Sprintf("%q: %s", p.keys[p.n], failText(msg))}
}

// fails reports whether a refusal of p with the code c refuses the whole request. After the refusal
// of a try, another key may still be granted. An owner that holds one key shared can wait for the
// others.
func (p part) fails(c protocol.Code) bool {
	switch c {
	case protocol.Timeout:
		return true
	case protocol.Canceled, protocol.Upgrade:
		return false
	}
	return p.wait
}

// answered continues m after the answer to a part.
func (p part) answered(e *Engine, _ *cache.Message, now int64, a *followUp) {
	m := p.anyAcquire
	m.mu.Lock()
	ours := m.decidedBy == p.n && !m.concluded
	m.concluded = m.concluded || ours
	granted := m.granted
	m.mu.Unlock()
	if !ours {
		m.proceed(e, now, a)
		return
	}
	m.endParts(e, now, a)
	if granted {
		m.finish(a, false, func(b []byte) []byte { return b })
	} else {
		m.fail(p.n, now, a)
	}
}

// endParts withdraws the parts that are not answered.
func (m *anyAcquire) endParts(e *Engine, now int64, a *followUp) {
	m.mu.Lock()
	parts, waiting := slices.Clone(m.parts), m.waiting
	m.mu.Unlock()
	for n, requested := range parts {
		if requested {
			sh := e.lock(shardOf(m.keys[n]))
			sh.table.CancelInternal(m.s.core, part{m, n, waiting}, now, &sh.out)
			e.carryOutAndUnlock(sh, now, a)
		}
	}
}

// withdraw ends m, whose client has canceled it. The client's cancel waits in m.cancel.
func (m *anyAcquire) withdraw(e *Engine, now int64, a *followUp) {
	if !m.Claim() {
		return // the answer that has decided it is about to be passed on
	}
	m.endParts(e, now, a)
	m.mu.Lock()
	m.refusals[0] = refusal{protocol.Canceled, "withdrawn"}
	m.mu.Unlock()
	m.fail(0, now, a)
}

// refuse ends m because none of its keys was granted. The answer is the code of a key that has
// failed; without one, busy; without a busy key, upgrade.
func (m *anyAcquire) refuse(now int64, a *followUp) {
	rank := func(c protocol.Code) int {
		switch c {
		case protocol.Upgrade:
			return 0
		case protocol.Busy:
			return 1
		}
		return 2
	}
	m.mu.Lock()
	why := 0
	for n := range m.refusals {
		if rank(m.refusals[n].code) > rank(m.refusals[why].code) {
			why = n
		}
	}
	m.mu.Unlock()
	if m.Claim() {
		m.fail(why, now, a)
	}
}

// Queues reports whether the session has an acquire-any with this id that waits in the queue of
// each of its keys.
func (s *Session) Queues(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.anyAcquires {
		if m.id == id {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.waiting && !slices.Contains(m.parts, false)
		}
	}
	return false
}

// fail answers the client with the refusal of key n.
func (m *anyAcquire) fail(n int, now int64, a *followUp) {
	m.mu.Lock()
	why, left := m.refusals[n], m.left
	m.mu.Unlock()
	m.classes[n].refused.add(why.code)
	m.noteFailed(why.code, n, now, a)
	m.finish(a, why.code == protocol.Canceled, func(b []byte) []byte {
		return protocol.AppendError(b, m.id, why.code, why.text, Millis(left))
	})
}
