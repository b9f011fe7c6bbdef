package engine

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// This file begins and ends sessions, and encodes answers and pushes into the outbox of a session.
// The session's transport writes them to the client later.

// Transport carries a session's output to its client. The engine calls Flush, without mutexes held,
// when there may be output. It calls Kill, perhaps with mutexes held, to end the session; Kill must
// not block. The last frame of the output then gives the reason, unless the client does not read.
type Transport interface {
	Flush()
	Kill()
	Yield() // lets other goroutines run; called during the end of a session with many holds
}

// Peer describes the process at the other end of a connection.
type Peer struct {
	PID, UID, GID int   // -1 when not known
	Groups        []int // its other groups, where they are known
	Watched       bool
}

// Unknown is a peer about which nothing is known.
var Unknown = Peer{PID: -1, UID: -1, GID: -1}

// Session is one client connection, with the state of its input and the output that waits to be
// written.
type Session struct {
	core      *cache.Session
	peer      Peer
	transport Transport
	engine    *Engine
	pace      *pace // its user's
	began     int64

	queries atomic.Int32 // store queries that are not answered

	// Used by the reader alone.
	greeted  bool
	maxFrame int // the frame limit that the welcome stated, in bytes
	req      protocol.Request
	after    followUp

	heard   atomic.Int64           // when the last frame came
	delayed atomic.Bool            // frames are not read, because its user is over the rate limit
	client  atomic.Pointer[string] // name and label, once greeted
	// AuditTail caches the end of the session's lines in the audit log. It belongs to the caller.
	AuditTail atomic.Pointer[[]byte]
	touched   atomic.Bool // a goroutine is about to flush it
	ended     atomic.Bool // nothing more is written
	closing   atomic.Bool // Fatal has been called: no more requests are handled

	mu             sync.Mutex
	out            []byte // the outbox; guarded by mu, like all fields below
	offered        int    // bytes of out that the transport was asked to write, and has not taken
	floor          int64  // the earliest validity stated since the current survey began
	surveyed       bool   // a survey of the holds is in progress: see keepalive.go
	keepaliveAt    int64  // when the next keepalive is due; Forever for none
	keepaliveEvery int64
	asked          int64            // when the first keepalive after heard was sent, if it is later
	stated         int64            // the latest validity stated
	killed         bool             // Fatal or Stated has been called: the outbox gets nothing more
	multiAcquires  []*multiAcquire  // multi-acquires in progress
	anyAcquires    []*anyAcquire    // acquire-anys in progress
	spans          map[uint64]*Span // traced acquires in progress, by id
}

// Open begins a session. It returns nil if the user has reached the maximum number of sessions. The
// caller has to call End once, when the peer has gone.
func (e *Engine) Open(p Peer, t Transport) *Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	if limit := e.settings().Users.Conns; limit > 0 && e.users.conns(p.UID) >= limit {
		return nil
	}
	e.lastID++
	s := e.newSession(e.lastID, p, t)
	e.addToUser(s)
	return s
}

// newSession makes a session with the number id, which has no user yet. It is called with e.mu
// held.
func (e *Engine) newSession(id uint64, p Peer, t Transport) *Session {
	s := &Session{core: cache.NewSession(id, shards), peer: p, transport: t, engine: e,
		began: e.clock(), floor: cache.Forever, keepaliveAt: cache.Forever}
	s.core.Shell = s
	e.sessions[id] = s
	return s
}

// ID returns the session's number.
func (s *Session) ID() uint64 { return s.core.ID }

// Peer returns the process at the other end.
func (s *Session) Peer() Peer { return s.peer }

// Client returns the name and the label of the client. ok is false before its hello.
func (s *Session) Client() (name string, ok bool) {
	if p := s.client.Load(); p != nil {
		return *p, true
	}
	return "", false
}

// Transport returns the transport that Open or SetTransport has set.
func (s *Session) Transport() Transport { return s.transport }

// RateLimit returns the present rate limit of the session's user; nil for none.
func (s *Session) RateLimit() *RateLimit { return s.pace.limit.Load() }

// BeginDelay records that the session's frames are not read for now, because its user is over the
// rate limit. Until EndDelay the session does not count as silent.
func (s *Session) BeginDelay() { s.delayed.Store(true) }

// EndDelay ends the delay that BeginDelay has begun.
func (s *Session) EndDelay() {
	s.hear(s.engine.clock()) // first, so that validity stated during the delay stays true
	s.delayed.Store(false)
}

// Detached reports whether s is no client's session, but has the detached holds of a user.
func (s *Session) Detached() bool { return s.core.ID&detachedID != 0 }

// Ended reports whether End has been called.
func (s *Session) Ended() bool { return s.ended.Load() }

// Closing reports whether Fatal has been called. The session handles no more requests.
func (s *Session) Closing() bool { return s.closing.Load() }

// Killed reports whether nothing is written any more: Fatal or Stated has been called.
func (s *Session) Killed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed
}

// SessionOf returns the session to which the table's record belongs.
func SessionOf(c *cache.Session) *Session { return c.Shell.(*Session) }

// maxEnds bounds the holds and waits that End gives up before it yields to other goroutines.
const maxEnds = 32

// End releases the holds of the session and withdraws its waits. No other function releases holds
// because a session has ended. End visits shards until none is marked: a request that was being
// handled may have marked one meanwhile.
func (e *Engine) End(s *Session) {
	s.ended.Store(true)
	s.core.Ended.Store(true)
	a := getFollowUp()
	defer putFollowUp(a)
	left := maxEnds
	for {
		mask := s.core.Shards.Load()
		if mask == 0 {
			break
		}
		for i := range e.shards {
			for more := mask&(1<<i) != 0; more; {
				now := e.clock()
				sh := e.lock(i)
				left, more = sh.table.EndSession(s.core, left, now, &sh.out)
				e.carryOutAndUnlock(sh, now, a)
				e.finish(a, now, nil)
				if left == 0 {
					s.transport.Yield()
					left = maxEnds
				}
			}
		}
	}
	s.endSpans()
	e.mu.Lock()
	delete(e.sessions, s.core.ID)
	e.users.leave(s.peer.UID, e.clock())
	e.mu.Unlock()
}

// EndWaits withdraws the session's waits and leaves its holds. It is for a session that the daemon
// ends: the keys stay closed until the peer knows of the end, or its stated validity is over.
func (e *Engine) EndWaits(s *Session) {
	s.core.Ended.Store(true) // the session gets no new hold or waiter either
	now := e.clock()
	a := getFollowUp()
	defer putFollowUp(a)
	for i := range e.shards {
		if s.core.Shards.Load()&(1<<i) == 0 {
			continue
		}
		sh := e.lock(i)
		sh.table.EndWaits(s.core, now, &sh.out)
		e.carryOutAndUnlock(sh, now, a)
	}
	e.finish(a, now, nil)
}

// hear records that the session counts as heard at now. It never moves that time back, because a
// stated validity may depend on it.
func (s *Session) hear(now int64) {
	for was := s.heard.Load(); now > was && !s.heard.CompareAndSwap(was, now); {
		was = s.heard.Load()
	}
}

// lastHeard returns when the session counts as heard. It is now while the daemon does not read its
// frames: an answer to a keepalive may be among them.
func (s *Session) lastHeard(now int64) int64 {
	if s.delayed.Load() {
		s.hear(now)
	}
	return s.heard.Load()
}

// Stated returns the latest validity that was stated to the client. After the call nothing more is
// put into the outbox, so that the client gets no later validity.
func (s *Session) Stated() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepaliveAt = cache.Forever
	s.killed = true
	return s.stated
}

// Swap returns the outbox and replaces it with an empty buffer.
func (s *Session) Swap(empty []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.out
	s.out, s.offered = empty[:0], 0
	return b
}

// Output returns a copy of the outbox.
func (s *Session) Output() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.out)
}

// mark records that s has output. The followUp that marks a session first flushes it.
func (a *followUp) mark(s *Session) {
	if !s.touched.Swap(true) {
		a.touched = append(a.touched, s)
	}
}

// unmark lets the next followUp mark s again.
func (s *Session) unmark() { s.touched.Store(false) }

// write appends a frame to the outbox. It ends a session whose client does not read.
func (s *Session) write(a *followUp, frame func(b []byte) []byte) {
	s.mu.Lock()
	slow := s.writeLocked(frame)
	s.mu.Unlock()
	if slow {
		s.tooSlow()
	}
	a.mark(s)
}

// writeLocked appends a frame to the outbox, and reports whether the client does not read.
func (s *Session) writeLocked(frame func(b []byte) []byte) (slow bool) {
	if !s.killed && !s.ended.Load() {
		s.out = frame(s.out)
	}
	return s.slowLocked()
}

// slowLocked reports whether the client does not read. Only output that the transport was asked to
// write counts: one event can have more output than the outbox may hold.
func (s *Session) slowLocked() bool { return s.offered > s.engine.settings().OutBuffer }

// flush asks the transport to write the outbox.
func (s *Session) flush() {
	s.mu.Lock()
	s.offered = len(s.out)
	s.mu.Unlock()
	s.transport.Flush()
}

// halfFull reports whether the outbox has more than half of what may wait there.
func (s *Session) halfFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.out) > s.engine.settings().OutBuffer/2
}

func (s *Session) tooSlow() { s.Fatal(protocol.TooSlow, "replies are not read") }

// send encodes a message of a table into the outbox of its session. The shard of the message is
// locked, so the messages for a key stay in order.
func (e *Engine) send(m *cache.Message, now int64, a *followUp) {
	s := SessionOf(m.Re.Session)
	if s.ended.Load() {
		return
	}
	s.mu.Lock()
	if s.killed {
		s.mu.Unlock()
		return
	}
	switch m.Kind {
	case cache.MsgGranted:
		g := e.stateGrant(s, m, now)
		if p, ok := m.Re.InternalReply.(part); ok {
			s.out = protocol.AppendGrantOf(s.out, m.Re.ID, &g, uint64(p.n))
		} else {
			s.out = protocol.AppendGrant(s.out, m.Re.ID, &g)
		}
	case cache.MsgReleased:
		s.out = protocol.AppendReleased(s.out, m.Re.ID, uint64(m.Count))
	case cache.MsgCanceled:
		s.out = protocol.AppendCanceled(s.out, m.Re.ID, m.Count > 0)
	case cache.MsgLost:
		// A multi-acquire in progress fails if it had this key. The client gets the push, too,
		// because it may have had the hold before.
		s.loseInMulti(m)
		s.out = protocol.AppendLost(s.out, m.Key, m.Owner, m.Fence, m.Reason)
		// Until now, keepalives could not state a time later than the end of this hold. Now they can,
		// for the session's other holds, so a keepalive is due at once.
		if s.keepaliveAt != cache.Forever || s.surveyed {
			s.keepaliveAt = now
			e.keepaliveBy(now)
		}
	case cache.MsgInspected:
		s.out = protocol.AppendInspected(s.out, m.Re.ID, &protocol.State{Held: m.Held, Mode: m.Mode,
			Holders: uint64(m.Holders), Waiters: uint64(m.Waiters), Left: Millis(m.Left),
			Fence: m.Fence})
	case cache.MsgFailed:
		if r, quiet := m.Re.InternalReply.(*quietRelease); quiet {
			s.out = protocol.AppendReleaseFailed(s.out, string(r.key), r.owner, r.fence, m.Code,
				failText(m))
			break
		}
		s.out = protocol.AppendError(s.out, m.Re.ID, m.Code, failText(m), Millis(m.Left))
	}
	if len(s.spans) > 0 {
		s.endSpanLocked(m.Re.ID, endOf(m))
	}
	slow := s.slowLocked()
	s.mu.Unlock()
	if slow {
		s.tooSlow()
	}
	a.mark(s)
}

// stateGrant returns the wire form of a grant and records the validity that it states. It is called
// with s.mu held.
func (e *Engine) stateGrant(s *Session, m *cache.Message, now int64) protocol.Grant {
	ttl := m.ShortTTL
	if !m.Degraded {
		ttl = m.Store.Validity(ttl)
	}
	if heartbeat := int64(m.Heartbeat); heartbeat > 0 {
		idle := s.keepaliveAt == cache.Forever && !s.surveyed
		// The heartbeat counts from now in two cases. The session may have had no keepalive to answer, or
		// too few for this heartbeat: then even a client that answers each would lose the hold before
		// the next one. Or it has been silent for so long that the hold would be lost at once.
		if idle || s.keepaliveEvery > heartbeat/3 || now-s.lastHeard(now) >= heartbeat {
			s.hear(now)
		}
		m.Until = min(m.Until, s.heard.Load()+heartbeat)
		ttl = min(ttl, heartbeat)
	}
	s.floor = min(s.floor, m.Until)
	s.stated = max(s.stated, m.Until)
	if at := now + ttl/3; at < s.keepaliveAt {
		s.keepaliveAt, s.keepaliveEvery = at, ttl/3
		e.keepaliveBy(at)
	}
	g := protocol.Grant{Fence: m.Fence, Deadline: uint64(m.Until / int64(time.Millisecond)),
		Left: uint64(max(0, m.Until-now) / int64(time.Millisecond)), Count: uint64(m.Count)}
	if m.Degraded {
		g.Flags |= protocol.GrantDegraded
	}
	if m.Bound {
		g.Flags |= protocol.GrantBound
	}
	if m.End != 0 {
		g.End = uint64(m.End / int64(time.Millisecond))
	}
	return g
}

// Millis converts nanoseconds to milliseconds, and a negative number to -1.
func Millis(ns int64) int64 {
	if ns < 0 {
		return -1
	}
	return ns / int64(time.Millisecond)
}

// failText returns the text of an error reply, for people.
func failText(m *cache.Message) string {
	switch m.Code {
	case protocol.Busy:
		return "the key is held, or other clients were before this one"
	case protocol.Timeout:
		return "the wait ran out"
	case protocol.NotHeld:
		if m.Err != nil {
			return m.Err.Error()
		}
		return "not held by this owner under this fence"
	case protocol.Canceled:
		return "withdrawn"
	case protocol.Upgrade:
		return "held shared; an exclusive hold could never be granted"
	case protocol.Invalid, protocol.Limit, protocol.Denied, protocol.Unsupported:
		return m.Err.Error()
	case protocol.Draining:
		return "the daemon is going away"
	}
	text := "failed at the store"
	if m.Code == protocol.Unknown {
		text = "released here; the store has not confirmed it yet"
	} else if m.Err == nil {
		return "the store does not answer"
	}
	if m.Err != nil {
		text += ": " + m.Err.Error()
	}
	return shorten(text, maxText)
}

// maxText bounds the text of a failure, in bytes. A store's errors may be of any length, and not in
// UTF-8. A client that got such a text would end the connection, and lose every lock.
const maxText = 1000

// Fatal ends the session. The last frame gives the reason, unless the client does not read.
func (s *Session) Fatal(c protocol.Code, msg string) {
	s.mu.Lock()
	if s.killed {
		s.mu.Unlock()
		return
	}
	s.killed = true
	s.engine.faults.add(c)
	if c == protocol.TooSlow {
		s.out = s.out[:0:0] // a part of a frame may be written already, so no last frame can follow
	} else {
		s.out = protocol.AppendFatal(s.out, c, msg)
	}
	s.mu.Unlock()
	s.closing.Store(true)
	s.transport.Kill()
}
