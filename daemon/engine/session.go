package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// Transport is how a session's output reaches its client. Flush is called
// without locks when there may be some; Kill when the session has to end from
// our side, for the reason that its last frame gives.
type Transport interface {
	Flush()
	Kill()
	Yield() // lets others go first
}

// Peer is who is at the other end of a connection.
type Peer struct {
	PID, UID, GID int   // -1 when not known
	Groups        []int // its other groups, where they are known
	Watched       bool
}

// Unknown is a peer of whom nothing is known.
var Unknown = Peer{PID: -1, UID: -1, GID: -1}

// Session is one client connection: what has been read from it and what waits
// to be written.
type Session struct {
	core      *cache.Session
	peer      Peer
	transport Transport
	engine    *Engine
	pace      *pace // its user's
	began     int64

	questions atomic.Int32 // to stores, that are not answered

	// Of the reader alone.
	greeted bool
	frame   int // the frame limit that the welcome stated, in bytes
	req     protocol.Request
	after   followUp

	heard   atomic.Int64           // when the last frame came
	delayed atomic.Bool            // frames are not read: its user asks too fast
	client  atomic.Pointer[string] // name and label, once greeted
	// AuditTail caches the end of the session's lines in the audit log. It belongs to the caller.
	AuditTail atomic.Pointer[[]byte]
	touched   atomic.Bool // somebody is about to flush it
	ended     atomic.Bool // nothing more is written
	closing   atomic.Bool // Fatal has been said: nothing more is read

	mu             sync.Mutex
	out            []byte // guarded by mu, as is all below
	floor          int64  // the earliest validity stated since the survey under way began
	surveyed       bool   // one is
	keepaliveAt    int64  // when the next keepalive is due; Forever for none
	keepaliveEvery int64
	asked          int64 // when the first keepalive since heard was sent; none has been if heard is not before
	stated         int64 // the latest validity stated
	killed         bool
	multiAcquires  []*multiAcquire  // acquire-manys under way
	spans          map[uint64]*Span // acquires under way that are traced, by id
}

// Open begins a session; nil when its user has as many as he may. The caller has to call End once,
// when its peer has gone.
func (e *Engine) Open(p Peer, t Transport) *Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	if most := e.settings().Users.Conns; most > 0 && e.users.conns(p.UID) >= most {
		return nil
	}
	e.lastID++
	s := e.session(e.lastID, p, t)
	e.belongs(s)
	return s
}

// session makes a session of that number, which has no user yet. Called with e.mu held.
func (e *Engine) session(id uint64, p Peer, t Transport) *Session {
	s := &Session{core: cache.NewSession(id, shards), peer: p, transport: t, engine: e, began: e.clock(),
		floor: cache.Forever, keepaliveAt: cache.Forever}
	s.core.Shell = s
	e.sessions[id] = s
	return s
}

// ID is the session's number.
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

// Transport returns what Open or Carry has set.
func (s *Session) Transport() Transport { return s.transport }

// RateLimit returns the limit of the session's user now; nil for none.
func (s *Session) RateLimit() *RateLimit { return s.pace.limit.Load() }

// BeginDelay notes that the session's frames are not read for now, because its user is over the rate limit. Its
// silence does not count meanwhile.
func (s *Session) BeginDelay() { s.delayed.Store(true) }

// EndDelay is the end of BeginDelay.
func (s *Session) EndDelay() {
	s.hear(s.engine.clock()) // before delayed changes, so that validity stated during the delay stays true
	s.delayed.Store(false)
}

// Ended reports whether End has been called.
func (s *Session) Ended() bool { return s.ended.Load() }

// Closing reports whether Fatal has been called: the session reads no more.
func (s *Session) Closing() bool { return s.closing.Load() }

// Killed reports whether nothing is written any more: Fatal or Stated has been called.
func (s *Session) Killed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed
}

// SessionOf returns the session to which the table's record belongs.
func SessionOf(c *cache.Session) *Session { return c.Shell.(*Session) }

// maxEnds bounds how many holds and waits are given up before others go first.
const maxEnds = 32

// End releases everything that the session holds and withdraws its waits. It is
// the one place where that is done.
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
				e.unlock(sh, i, now, a)
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

// EndWaits withdraws the session's waits; its holds stay. It is for a session
// that we end: its keys stay closed until the peer is sure to know.
func (e *Engine) EndWaits(s *Session) {
	s.core.Ended.Store(true) // nothing new either
	now := e.clock()
	a := getFollowUp()
	defer putFollowUp(a)
	for i := range e.shards {
		if s.core.Shards.Load()&(1<<i) == 0 {
			continue
		}
		sh := e.lock(i)
		sh.table.EndWaits(s.core, now, &sh.out)
		e.unlock(sh, i, now, a)
	}
	e.finish(a, now, nil)
}

// hear notes that the session counts as heard at now. It never moves that time back: a validity may have been
// stated by it.
func (s *Session) hear(now int64) {
	for was := s.heard.Load(); now > was && !s.heard.CompareAndSwap(was, now); {
		was = s.heard.Load()
	}
}

// lastHeard returns when the session counts as heard. It is now while the daemon does not read its frames: an answer
// to a keepalive may be among them.
func (s *Session) lastHeard(now int64) int64 {
	if s.delayed.Load() {
		s.hear(now)
	}
	return s.heard.Load()
}

// Stated is the latest time until which the client may believe that it holds
// something; keepalives end with the call.
func (s *Session) Stated() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepaliveAt = cache.Forever
	s.killed = true
	return s.stated
}

// Take empties the outbox into b.
func (s *Session) Take(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b = append(b, s.out...)
	s.out = s.out[:0]
	if cap(s.out) > 64<<10 {
		s.out = nil
	}
	return b
}

// Swap trades the outbox for an empty buffer.
func (s *Session) Swap(empty []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.out
	s.out = empty[:0]
	return b
}

// mark notes that s has output; the first one to do so flushes it.
func (a *followUp) mark(s *Session) {
	if !s.touched.Swap(true) {
		a.touched = append(a.touched, s)
	}
}

func (s *Session) unmark() { s.touched.Store(false) }

// write appends a frame to the outbox. A client that does not read is cut off.
func (s *Session) write(a *followUp, frame func(b []byte) []byte) {
	s.mu.Lock()
	if !s.killed && !s.ended.Load() {
		s.out = frame(s.out)
	}
	slow := len(s.out) > s.engine.settings().OutBuffer
	s.mu.Unlock()
	if slow {
		s.tooSlow()
	}
	a.mark(s)
}

func (s *Session) tooSlow() { s.Fatal(protocol.TooSlow, "replies are not read") }

// send encodes a message of the table into its session's outbox.
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
		s.out = protocol.AppendGrant(s.out, m.Re.ID, &g)
	case cache.MsgReleased:
		s.out = protocol.AppendReleased(s.out, m.Re.ID, uint64(m.Count))
	case cache.MsgCanceled:
		s.out = protocol.AppendCanceled(s.out, m.Re.ID, m.Count > 0)
	case cache.MsgLost:
		s.loseInMulti(m) // the client is told all the same: it may have had the hold before
		s.out = protocol.AppendLost(s.out, m.Key, m.Owner, m.Fence, protocol.Reason(m.Reason))
		if s.keepaliveAt != cache.Forever || s.surveyed { // what the others can count on may have waited for this one
			s.keepaliveAt = now
			e.keepaliveBy(now)
		}
	case cache.MsgInspected:
		s.out = protocol.AppendInspected(s.out, m.Re.ID, &protocol.State{Held: m.Held, Mode: protocol.Mode(m.Mode),
			Holders: uint64(m.Holders), Waiters: uint64(m.Waiters), Left: Millis(m.Left), Fence: m.Fence})
	case cache.MsgFailed:
		s.out = protocol.AppendError(s.out, m.Re.ID, protocol.Code(m.Code), failText(m), Millis(m.Left))
	}
	if len(s.spans) > 0 {
		s.spanEnds(m.Re.ID, endOf(m))
	}
	slow := len(s.out) > e.settings().OutBuffer
	s.mu.Unlock()
	if slow {
		s.tooSlow()
	}
	a.mark(s)
}

// stateGrant makes the wire's form of a grant and notes what it states. Called
// with s.mu held.
func (e *Engine) stateGrant(s *Session, m *cache.Message, now int64) protocol.Grant {
	ttl := m.ShortTTL
	if !m.Degraded {
		ttl = m.Store.Validity(ttl)
	}
	if heartbeat := int64(m.Heartbeat); heartbeat > 0 {
		idle := s.keepaliveAt == cache.Forever && !s.surveyed
		if idle || s.keepaliveEvery > heartbeat/3 || now-s.lastHeard(now) >= heartbeat {
			// The session had no keepalive to answer, or too few for this heartbeat: a client that answers each
			// would lose the hold before the next one. Or the grant would already be over.
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
	if m.End != 0 {
		g.End = uint64(m.End / int64(time.Millisecond))
	}
	return g
}

// Millis converts nanoseconds to milliseconds, and less than 0 to -1.
func Millis(ns int64) int64 {
	if ns < 0 {
		return -1
	}
	return ns / int64(time.Millisecond)
}

func failText(m *cache.Message) string {
	switch m.Code {
	case cache.CodeBusy:
		return "held, or wanted by somebody before you"
	case cache.CodeTimeout:
		return "the wait ran out"
	case cache.CodeNotHeld:
		return "not held by this owner under this fence"
	case cache.CodeCanceled:
		return "withdrawn"
	case cache.CodeUpgrade:
		return "held shared; an exclusive hold could never be granted"
	case cache.CodeInvalid, cache.CodeLimit, cache.CodeDenied, cache.CodeUnsupported:
		return m.Err.Error()
	case cache.CodeDraining:
		return "the daemon is going away"
	}
	text := "failed at the store"
	if m.Code == cache.CodeUnknown {
		text = "released here; the store has not confirmed it yet"
	} else if m.Err == nil {
		return "the store does not answer"
	}
	if m.Err != nil {
		text += ": " + m.Err.Error()
	}
	return text
}

// Fatal ends the session from our side: the reason is the last frame.
func (s *Session) Fatal(c protocol.Code, msg string) {
	s.mu.Lock()
	if s.killed {
		s.mu.Unlock()
		return
	}
	s.killed = true
	s.engine.faults.add(c)
	if c == protocol.TooSlow {
		s.out = s.out[:0:0] // what was not read will not be; a cut frame may go first
	} else {
		s.out = protocol.AppendFatal(s.out, c, msg)
	}
	s.mu.Unlock()
	s.closing.Store(true)
	s.transport.Kill()
}
