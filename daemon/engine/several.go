package engine

import (
	"slices"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// several is the common part of an acquire of several keys: of all of them (multi.go), or of one of
// them (any.go). It requests the keys one by one from the lock tables.
type several struct {
	s        *Session
	id       uint64
	q        cache.Acquire // the request to a table for each key, without the key
	keys     [][]byte
	ttls     []int64
	classes  []*class // of the keys
	began    int64
	mu       sync.Mutex
	deadline int64    // of the wait; Forever for none; guarded by mu, as is cancel
	cancel   []uint64 // ids of cancels that wait for its answer
}

// Since returns when the request began, from which MaxWait counts.
func (m *several) Since() int64 { return m.began }

// refusal is the refusal of a key.
type refusal struct {
	code protocol.Code
	text string
}

// begin fills m in from q. It refuses q, and returns false, if its session may not use one of the
// keys. order has the keys' indices in byte order.
func (m *several) begin(s *Session, q *protocol.Request, now int64, a *followUp) (
	order []int, ok bool,
) {
	m.s, m.id, m.began, m.deadline = s, q.ID, now, cache.Forever
	// askOne checks each key again, because the routes may change.
	wait, all := cache.Forever, s.engine.routes.Load()
	for n, k := range q.Keys {
		rt := routeFor(all, k)
		ttl, longest := rt.terms(q)
		if code, err := rt.checkAcquire(&s.peer, q.Mode, ttl); code != protocol.OK {
			s.refuseAcquire(rt, q, k, code, err, now, a)
			return nil, false
		}
		wait = min(wait, longest)
		m.ttls, m.classes = append(m.ttls, ttl), append(m.classes, rt.class)
		m.keys = append(m.keys, slices.Clone(k))
		order = append(order, n)
	}
	slices.SortFunc(order, func(x, y int) int { return slices.Compare(m.keys[x], m.keys[y]) })
	for n := range order[1:] {
		if slices.Equal(m.keys[order[n]], m.keys[order[n+1]]) {
			s.refuse(q.ID, protocol.Invalid, "a key is named twice", a)
			return nil, false
		}
	}
	m.q = cache.Acquire{Owner: q.Owner, Mode: q.Mode, Wait: wait,
		Fixed: q.Flags&protocol.FlagFixed != 0, Re: s.request(q.ID)}
	if wait < cache.Forever-now {
		m.deadline = now + wait
	}
	s.beginSpan(routeFor(all, q.Keys[0]), q, q.Keys[0], now)
	return order, true
}

// askOne requests key n with the settings of q, unless the session may no longer use the key. It
// calls after with the shard's mutex held.
func (m *several) askOne(e *Engine, n int, q *cache.Acquire, now int64, a *followUp,
	after func(*shard),
) {
	sh, rt := e.lockKey(m.keys[n])
	q.NS, q.TTL, q.Key, q.Draining = rt.policy, m.ttls[n], m.keys[n], e.draining.Load()
	if q.Wait > 0 {
		q.Wait = m.left(rt, now)
	}
	if code, err := rt.checkAcquire(&m.s.peer, q.Mode, q.TTL); code != protocol.OK {
		refused := cache.Message{Kind: cache.MsgFailed, Code: code, Re: q.Re, Left: -1, Err: err}
		sh.out.Messages = append(sh.out.Messages, refused)
	} else {
		sh.table.Acquire(q, now, &sh.out)
	}
	after(sh)
	e.carryOutAndUnlock(sh, now, a)
}

// left returns how long m may still wait for a key of rt, whose longest wait a reload may have
// shortened.
func (m *several) left(rt *route, now int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if longest := int64(rt.MaxWait); longest > 0 {
		m.deadline = min(m.deadline, m.began+longest)
	}
	if m.deadline == cache.Forever {
		return cache.Forever
	}
	return max(0, m.deadline-now)
}

// noteFailed ends the span of m, and reports that m has failed because of key n.
func (m *several) noteFailed(c protocol.Code, n int, now int64, a *followUp) {
	key := string(m.keys[n])
	m.s.endSpan(m.id, spanEnd{outcome: cache.Outcome(c), key: key})
	m.s.noteRefused(cache.Notice{Mode: m.q.Mode, Code: c, Key: key, Owner: m.q.Owner,
		Took: now - m.began}, a)
}

// finish answers the request, and then the cancels that wait for it. Later cancels do not find the
// request.
func (m *several) finish(a *followUp, canceled bool, frame func([]byte) []byte) {
	s := m.s
	s.mu.Lock()
	s.multiAcquires = slices.DeleteFunc(s.multiAcquires,
		func(x *multiAcquire) bool { return &x.several == m })
	s.anyAcquires = slices.DeleteFunc(s.anyAcquires,
		func(x *anyAcquire) bool { return &x.several == m })
	m.mu.Lock()
	cancels := m.cancel
	m.mu.Unlock()
	slow := s.writeLocked(func(b []byte) []byte {
		b = frame(b)
		for _, id := range cancels {
			b = protocol.AppendCanceled(b, id, canceled)
		}
		return b
	})
	s.mu.Unlock()
	if slow {
		s.tooSlow()
	}
	a.mark(s)
}

// maxCancels bounds the cancels that wait for one acquire of several keys to end.
const maxCancels = 16

// cancelSeveral withdraws an acquire of several keys. It returns false if the session has none with
// that id.
func (s *Session) cancelSeveral(q *protocol.Request, now int64, a *followUp) bool {
	var m *several
	var withdraw func(e *Engine, now int64, a *followUp)
	s.mu.Lock()
	for _, x := range s.multiAcquires {
		if x.id == q.Target {
			m, withdraw = &x.several, x.withdraw
		}
	}
	for _, x := range s.anyAcquires {
		if x.id == q.Target {
			m, withdraw = &x.several, x.withdraw
		}
	}
	if m == nil {
		s.mu.Unlock()
		return false
	}
	m.mu.Lock()
	full := len(m.cancel) == maxCancels
	if !full {
		m.cancel = append(m.cancel, q.ID)
	}
	m.mu.Unlock()
	s.mu.Unlock()
	if full {
		s.refuse(q.ID, protocol.Limit, "too many cancels of this request", a)
	} else {
		withdraw(s.engine, now, a)
	}
	return true
}
