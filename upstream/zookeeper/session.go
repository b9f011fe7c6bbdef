package zookeeper

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// session is one session at ZooKeeper with its nodes, from its first connection to its end. The
// library may move it from server to server, but never makes a second session for it.
type session struct {
	store *Store
	no    uint64
	conn  *zk.Conn
	// floor is the highest transaction id that the store had seen when the session began.
	floor int64
	ended <-chan zk.Event // closed when the library's goroutines have gone
	ctx   context.Context // ends with shut
	stop  context.CancelFunc
	calls sync.WaitGroup // library calls in flight, including abandoned ones
	wake  chan struct{}  // wakes establish, maintain and closeLater

	// These fields are set before the session is shared.
	id   int64
	ttl  time.Duration // as the server granted it
	self string        // the path of its own node

	overdue   atomic.Bool  // an answer is overdue: no request is sent until one comes
	rounds    atomic.Int64 // full rounds of servers without a connection
	watching  atomic.Bool  // there may be watches
	answers   atomic.Bool  // it watches for questions of other daemons
	abandoned atomic.Int64 // writes whose callers have given up and that may still go out
	high      atomic.Int64 // the highest transaction id in a reply of this session
	parents   *recent      // locks and semaphores whose nodes exist
	busy      *recent      // locks and semaphores that were held or full when last read
	// stamped is the session's own node as it was last written. Its czxid and version never fall.
	stamped atomic.Pointer[zk.Stat]
	asked   int64     // the czxid of the last question; only Store.answer uses it and askedAt
	askedAt time.Time // when it was first seen

	mu        sync.Mutex
	wire      *wire // the newest connection; guarded by mu, as are the fields below
	ready     bool  // the session is established on wire
	since     int64 // when ready last changed
	over      bool  // the server said that the session has expired, or our deadline passed
	fault     error // why else the session is over
	retired   bool  // no more connections are made
	until     int64 // the deadline
	why       error // the last error
	lockNodes map[nodeID]*lockNode
	byKey     map[string][]*lockNode // by the path of the lock
	byNode    map[string][]*lockNode // by the path of a watched node
	dirty     map[*lockNode]struct{} // lock nodes whose locks have to be checked
	deleted   map[*lockNode]struct{} // leases whose nodes another client has deleted
	sems      semaphores
}

// newSession starts to connect.
func (s *Store) newSession(no uint64) (*session, error) {
	se := &session{store: s, no: no, floor: s.high.Load(), wake: make(chan struct{}, 1),
		lockNodes: map[nodeID]*lockNode{}, byKey: map[string][]*lockNode{},
		byNode: map[string][]*lockNode{}, dirty: map[*lockNode]struct{}{},
		parents: newRecent(parentsFor), busy: newRecent(busyFor),
		deleted: map[*lockNode]struct{}{}, sems: newSemaphores()}
	se.ctx, se.stop = context.WithCancel(context.Background())
	hosts := newServers(s.cfg.Servers, func() { se.rounds.Add(1); se.wakeUp() })
	conn, events, err := zk.Connect(s.cfg.Servers, s.cfg.Session, zk.WithDialer(se.dial),
		zk.WithHostProvider(hosts), zk.WithEventCallback(se.event), zk.WithLogger(libraryLog{s.log}),
		zk.WithLogInfo(false), zk.WithMaxBufferSize(frameMax))
	if err != nil {
		se.stop()
		return nil, err
	}
	se.conn, se.ended = conn, events
	return se, nil
}

// libraryLog logs the library's messages, which are about every connection, at level debug.
type libraryLog struct{ log *zap.Logger }

func (l libraryLog) Printf(format string, args ...any) {
	if l.log.Core().Enabled(zap.DebugLevel) {
		l.log.Debug("zookeeper client: " + fmt.Sprintf(format, args...))
	}
}

// event is called by the library's goroutines and must not block.
func (se *session) event(ev zk.Event) {
	if ev.Type != zk.EventSession {
		se.watchFired(ev)
		return
	}
	switch ev.State {
	case zk.StateHasSession:
		se.mu.Lock()
		w := se.wire
		se.ready, se.why, se.since = true, nil, se.store.clock()
		if se.id == 0 {
			se.id, se.ttl = w.id, w.ttl
		} else if se.id != w.id || se.ttl != w.ttl {
			// This cannot happen, because a session keeps its id and password.
			se.over, se.ready = true, false
		}
		for _, g := range se.lockNodes { // watches may have been lost on the way
			if g.permit == nil {
				se.reconnectedLocked(g)
			}
		}
		se.semaphoresReconnectedLocked()
		se.mu.Unlock()
		se.overdue.Store(false)
		se.wakeUp()
		if se.answers.Load() {
			se.store.wakeAnswerer()
		}
	case zk.StateExpired:
		se.expired()
	case zk.StateDisconnected, zk.StateConnecting:
		se.mu.Lock()
		was := se.ready
		if se.ready = false; was {
			se.since = se.store.clock()
		}
		se.mu.Unlock()
		if was {
			se.wakeUp()
		}
	}
}

// wakeUp wakes the goroutine that maintains the session.
func (se *session) wakeUp() { signal(se.wake) }

// repeat calls f whenever wake has an element, and after the time that f last returned (at first
// after pause). If f returns 0, the previous timer continues. repeat returns when ctx ends.
func repeat(ctx context.Context, wake <-chan struct{}, pause time.Duration,
	f func() time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		if wait := f(); wait > 0 {
			timer.Reset(wait)
		}
	}
}

// signal puts an element into c, which has room for one, unless there is one already.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (se *session) failed(w *wire, err error) {
	addr := ""
	if a := w.RemoteAddr(); a != nil {
		addr = a.String()
	}
	se.failedAt(addr, err)
}

func (se *session) failedAt(addr string, err error) {
	if err == errRetired {
		return
	}
	se.mu.Lock()
	se.why = fmt.Errorf("%s: %w", addr, err)
	se.mu.Unlock()
}

// available returns an error if no request can be sent now.
func (se *session) available() error {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.availableLocked()
}

func (se *session) availableLocked() error {
	switch {
	case se.over || se.retired:
		return se.store.noSession(zk.ErrSessionExpired)
	case !se.ready && se.why != nil:
		return se.store.noSession(se.why)
	case !se.ready:
		return se.store.noSession(errNoConnection)
	case se.overdue.Load():
		return se.store.noSession(errOverdue)
	}
	return nil
}

// enter counts a call that is about to be made, and returns the connection that it will use.
func (se *session) enter() (*wire, error) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if err := se.availableLocked(); err != nil {
		return nil, err
	}
	se.calls.Add(1) // shut begins to wait only after over or retired is set
	return se.wire, nil
}

func (se *session) expired() { se.giveUp(nil) }

// giveUp ends the session because of fault, or nil if it has expired. It is not closed at the
// server: until its deadline, programs may rely on the nodes that are left of it.
func (se *session) giveUp(fault error) {
	se.mu.Lock()
	se.over, se.ready, se.retired = true, false, true
	if se.fault == nil {
		se.fault = fault
	}
	se.mu.Unlock()
	se.wakeUp()
}

// answered notes that a request that was sent at that time was answered on w. If the request went
// through the quorum, this moves the deadline: see doc.go, "The session's deadline".
func (se *session) answered(w *wire, sent int64, quorum bool) {
	now := se.store.clock()
	se.overdue.Store(false)
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.wire != w || !se.ready {
		return // the request may have gone out on a later connection
	}
	if quorum {
		w.confirmed.Store(true)
		base := w.sent
		for _, t := range w.exchanges {
			if t.answered+int64(se.confirmGap()) <= sent {
				base = max(base, t.sent)
			}
		}
		if until := cache.LeaseDeadline(base, int64(se.ttl)); until > se.until && !se.over {
			se.until = until
			se.store.publish(upstream.Session{No: se.no, Until: until, TTL: se.ttl})
		}
	}
	w.addExchange(exchange{sent, now}, int64(se.confirmGap()))
}

// saw records the transaction id of a reply. It ignores an id that is out of range, from which no
// fence can be made.
func (se *session) saw(zxid int64) {
	if zxid > int64(cache.MaxBase) {
		return
	}
	raise(&se.high, zxid)
	raise(se.store.high, zxid)
}

func raise(v *atomic.Int64, to int64) {
	for old := v.Load(); old < to && !v.CompareAndSwap(old, to); old = v.Load() {
	}
}

// confirmGap returns how long before the send of a confirmed transaction another request must
// have been answered, so that the leader knows of it.
func (se *session) confirmGap() time.Duration { return se.ttl / 4 }

// addExchange keeps the exchanges that can still matter: the newest that is old enough to count
// now, and a limited number of later ones.
func (w *wire) addExchange(t exchange, apart int64) {
	const most = 64
	old := 0
	for old+1 < len(w.exchanges) && w.exchanges[old+1].answered+apart <= t.sent {
		old++
	}
	w.exchanges = slices.Delete(w.exchanges, 0, old)
	if n := len(w.exchanges); n > 1 && t.sent-w.exchanges[n-1].sent < apart/most {
		return // this one would add little to the last one
	}
	w.exchanges = append(w.exchanges, t)
}

// deadline returns the deadline of the session, and whether the session is still valid.
func (se *session) deadline() (until int64, live bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.until, !se.over && se.store.clock() < se.until
}

// cut ends the current connection. The library then connects to another server.
func (se *session) cut(w *wire) { _ = w.Close() }

// shut ends the session's goroutines. If polite is set, it also closes the session at the server,
// which deletes its nodes. Otherwise the nodes remain until the session expires.
func (se *session) shut(polite bool) {
	se.mu.Lock()
	se.retired = true
	w := se.wire
	polite = polite && se.ready
	se.mu.Unlock()
	if polite {
		se.drain()
		w.rewatched()
		se.conn.Close()
	}
	se.stop()
	if w != nil {
		_ = w.Close()
	}
	if !polite {
		se.drain()
		se.conn.Close()
	}
	for range se.ended {
	}
	se.calls.Wait()
}

// drain waits for the calls in flight. If the library were closed first, it would write their
// answers while the callers read them.
func (se *session) drain() {
	done := make(chan struct{})
	go func() { se.calls.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(se.store.cfg.Timeout): // the calls end when the library is closed
	}
}
