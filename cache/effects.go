package cache

import (
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Session is the tables' record of one client connection. The counters may be read at any time. The
// parts of a shard are guarded by the mutex of that shard.
type Session struct {
	ID      uint64
	User    *Use // counts all sessions of its user together; nil to not count
	Holds   atomic.Int64
	Waiters atomic.Int64
	// Asks is the number of the session's requests that a store has yet to answer: acquires, even
	// if the session no longer waits for them, inspections and its own renewals.
	Asks atomic.Int64
	// Shards has a bit for each shard that knows holds or waiters of this session.
	Shards atomic.Uint64
	// Detached is the record of the user's detached holds; nil only in tests that have none.
	Detached *Session
	// Ended is set before Shards is read to call EndSession. So no later event gives the session a
	// hold or a waiter, and EndSession finds those that earlier events have given it.
	Ended atomic.Bool
	// Shell belongs to the caller. The table never uses it.
	Shell any

	isDetached bool           // see NewDetached
	index      []sessionIndex // by shard
}

type sessionIndex struct {
	holds  list[hold, holdsOfSession]
	waits  list[waiter, waitsOfSession]
	survey *hold // the next hold that the survey visits; nil when it has visited all
}

// NewSession returns the record of a session over the given number of shards, at most 64.
func NewSession(id uint64, shards int) *Session {
	return &Session{ID: id, index: make([]sessionIndex, shards)}
}

// Request names one request of a session. InternalReply belongs to the caller and returns with the
// answer.
type Request struct {
	Session       *Session
	ID            uint64
	InternalReply any
}

// PartOfRequest is the InternalReply of a request that is part of a larger request.
type PartOfRequest interface {
	Since() int64 // when the larger request began
}

// Choice is the InternalReply of an acquire that is one of several alternatives: at most one of
// them is granted.
type Choice interface {
	// Claim returns true for the first alternative that calls it. A table calls it just before it
	// grants the acquire, or when the session has ended, with the mutex of its shard held.
	Claim() bool
}

// choice returns the choice of which re is an alternative; nil for any other request.
func (re *Request) choice() Choice {
	c, _ := re.InternalReply.(Choice)
	return c
}

// claim reports whether re may be granted. It returns false if another alternative has been
// granted.
func (re *Request) claim() bool {
	c := re.choice()
	return c == nil || c.Claim()
}

// MessageKind is the kind of a message.
type MessageKind uint8

// The kinds of messages.
const (
	MsgGranted   MessageKind = iota + 1 // acquire, renew, downgrade: Fence, Count, Until, End
	MsgReleased                         // Count
	MsgCanceled                         // Count is 1 when a waiter was withdrawn
	MsgInspected                        // Held, Mode, Holders, Waiters, Left, Fence
	MsgFailed                           // Code, Left for Busy, Err
	MsgLost                             // Key, Owner, Fence, Reason; answers nothing
)

// Message is an answer or a push.
type Message struct {
	Kind     MessageKind
	Code     protocol.Code
	Reason   protocol.Reason
	Mode     Mode
	Held     uint8 // protocol.HeldNot, HeldHere or HeldThere
	Re       Request
	Key      string
	Owner    uint64
	Fence    uint64
	Until    int64 // stated validity, nanoseconds of the boot clock
	End      int64 // when the hold ends by itself; 0 for never
	Left     int64 // nanoseconds, -1 when not known
	Count    uint32
	Holders  int32
	Waiters  int32
	Handoff  bool  // MsgGranted: without a request to the store, because the lease was on this host
	Degraded bool  // MsgGranted: by this host alone, without a fence
	Bound    bool  // MsgGranted: the end of the daemon may end the keep early
	Err      error // MsgFailed: why, for people

	// MsgGranted: the engine derives the keepalive interval from these.
	Store     *StoreTraits  // where the lease is
	Heartbeat time.Duration // that the namespace of the lease requires; 0 for none
	ShortTTL  int64         // of the lease, nanoseconds
}

// Track tells the renewer to renew a lease before Until, or to forget it.
type Track struct {
	Lease  *Lease
	Token  uint64 // the lease's; returns with RenewDue
	Until  int64  // 0 to forget it
	TTL    int64
	Failed bool // the last renewal was not answered
	Store  int  // the number of the store where the lease is, or was
}

// NoticeKind is the kind of a notice.
type NoticeKind uint8

// The kinds of notices.
const (
	NoticeAcquired NoticeKind = iota + 1 // Took: the wait
	NoticeRefused                        // Code; Took: the wait
	NoticeReleased                       // Cause; Took: the hold
	NoticeLost                           // Reason, Released; Took: the hold
	// NoticeDetached means that the session has given the hold up, which is now detached. Another
	// notice will report its end. Took is the hold until now.
	NoticeDetached
)

// Notice is an event for the log.
type Notice struct {
	Kind   NoticeKind
	Mode   Mode
	Code   protocol.Code
	Cause  Cause
	Reason protocol.Reason
	// Released means that the store did not know the lease when the hold was released. There is a
	// NoticeReleased, too.
	Released bool
	Degraded bool
	Key      string
	Session  *Session
	Owner    uint64
	Fence    uint64
	Took     int64 // nanoseconds
}

// Effects collects, in order, what the caller has to do after an event. The caller empties it.
type Effects struct {
	Messages []Message
	Ops      []Op
	Tracks   []Track
	Notices  []Notice // of losses; with Audit, of everything that Stats counts
	Audit    bool     // set by the caller; Reset does not change it
}

// Reset empties e and keeps its memory.
func (e *Effects) Reset() {
	clear(e.Messages)
	clear(e.Ops)
	clear(e.Tracks)
	clear(e.Notices)
	e.Messages, e.Ops, e.Tracks, e.Notices = e.Messages[:0], e.Ops[:0], e.Tracks[:0], e.Notices[:0]
}

func (e *Effects) fail(re Request, c protocol.Code, err error) {
	e.Messages = append(e.Messages, Message{Kind: MsgFailed, Re: re, Code: c, Left: -1, Err: err})
}

// refuse answers an acquire that is not queued.
func (t *Table) refuse(q *Acquire, c protocol.Code, err error, out *Effects) {
	key := ""
	if out.Audit {
		key = string(q.Key)
	}
	t.answerRefused(q.NS, q.Re, Notice{Mode: q.Mode, Code: c, Key: key, Owner: q.Owner}, -1, err, out)
}

// dismiss answers and removes a waiter, with the given code. left is for busy, -1 when not known.
func (t *Table) dismiss(w *waiter, c protocol.Code, left int64, err error, now int64,
	out *Effects) {
	refused := Notice{Mode: w.mode, Code: c, Key: w.l.key, Owner: w.owner, Took: now - w.since}
	w.hadToWait = w.hadToWait && w.req.choice() == nil // of several alternatives, only a grant counts
	t.answerRefused(w.l.ns, w.req, refused, left, err, out)
	t.dropWaiter(w)
}

// answerRefused answers a refused acquire. n is the notice for the log.
func (t *Table) answerRefused(ns *Namespace, re Request, n Notice, left int64, err error,
	out *Effects) {
	if re.InternalReply == nil { // the shell counts a larger request, of which this is a part, once
		t.statsOf(ns).Acquires[n.Code]++
		if out.Audit {
			n.Kind, n.Session = NoticeRefused, re.Session
			out.Notices = append(out.Notices, n)
		}
	}
	out.Messages = append(out.Messages, Message{Kind: MsgFailed, Re: re, Code: n.Code, Left: left,
		Err: err})
}

// notice adds a notice about h.
func (e *Effects) notice(kind NoticeKind, h *hold, took int64) *Notice {
	e.Notices = append(e.Notices, Notice{Kind: kind, Mode: h.mode, Degraded: h.fence == 0,
		Key: h.l.key, Session: h.s, Owner: h.owner, Fence: h.fence, Took: took})
	return &e.Notices[len(e.Notices)-1]
}
