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

// session is one session at ZooKeeper with all that hangs on it, from its first
// connection to its end. The library may carry it from server to server, but never
// makes a second one of it.
type session struct {
	store *Store
	no    uint64
	conn  *zk.Conn
	floor int64           // the highest transaction id that the store had seen when the session began
	ended <-chan zk.Event // closed when the library's goroutines have gone
	ctx   context.Context // until shut
	stop  context.CancelFunc
	calls sync.WaitGroup // library calls under way, abandoned ones too
	wake  chan struct{}  // something happened that keep has to look at

	// What stands before anybody else sees the session.
	id   int64
	ttl  time.Duration // as granted
	self string        // the path of its own node

	suspect  atomic.Bool  // an answer is overdue: nothing more is asked until one comes
	rounds   atomic.Int64 // full rounds of servers without a connection
	watching atomic.Bool  // there may be watches
	answers  atomic.Bool  // it watches for questions of other daemons
	adrift   atomic.Int64 // writes that nobody waits for any more and that may still go out
	high     atomic.Int64 // the highest transaction id in a reply of this session
	asked    int64        // the creation of the last question; of Store.answer, as is askedAt
	askedAt  time.Time    // when it was first seen

	mu        sync.Mutex
	wire      *wire // the newest connection; guarded by mu, as is all below
	ready     bool  // it has the session
	since     int64 // when ready last changed
	over      bool  // the server said that the session has expired, or our deadline passed
	retired   bool  // no more connections
	until     int64 // the deadline
	why       error // what went wrong last
	lockNodes map[nodeID]*lockNode
	byKey     map[string][]*lockNode // by the path of the lock
	byNode    map[string][]*lockNode // by the path of a node that is watched
	dirty     map[*lockNode]struct{} // lock nodes whose locks have to be looked at
	parents   map[string]time.Time
	busy      map[string]time.Time   // locks that were held when they were last looked at
	missed    map[*lockNode]struct{} // leases whose nodes have disappeared
	sems      semaphores
}

// newSession starts connecting.
func (s *Store) newSession(no uint64) (*session, error) {
	se := &session{store: s, no: no, floor: s.high.Load(), wake: make(chan struct{}, 1),
		lockNodes: map[nodeID]*lockNode{}, byKey: map[string][]*lockNode{}, byNode: map[string][]*lockNode{}, dirty: map[*lockNode]struct{}{},
		parents: map[string]time.Time{}, busy: map[string]time.Time{},
		missed: map[*lockNode]struct{}{}, sems: newSemaphores()}
	se.ctx, se.stop = context.WithCancel(context.Background())
	hosts := newServers(s.cfg.Servers, func() { se.rounds.Add(1); se.kick() })
	conn, events, err := zk.Connect(s.cfg.Servers, s.cfg.Session, zk.WithDialer(se.dial), zk.WithHostProvider(hosts),
		zk.WithEventCallback(se.event), zk.WithLogger(libraryLog{s.log}), zk.WithLogInfo(false), zk.WithMaxBufferSize(frameMax))
	if err != nil {
		se.stop()
		return nil, err
	}
	se.conn, se.ended = conn, events
	return se, nil
}

// libraryLog takes the library's words, which are about every connection.
type libraryLog struct{ log *zap.Logger }

func (l libraryLog) Printf(format string, args ...any) {
	if l.log.Core().Enabled(zap.DebugLevel) {
		l.log.Debug("zookeeper client: " + fmt.Sprintf(format, args...))
	}
}

// event is called on the library's goroutines and must not block.
func (se *session) event(ev zk.Event) {
	if ev.Type != zk.EventSession {
		se.noticed(ev)
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
			se.over, se.ready = true, false // it cannot be: a session keeps both
		}
		for _, g := range se.lockNodes { // watches may have been lost on the way
			if g.permit == nil {
				se.anewLocked(g)
			}
		}
		se.anewPermitsLocked()
		se.mu.Unlock()
		se.suspect.Store(false)
		se.kick()
		if se.answers.Load() {
			se.store.questioned()
		}
	case zk.StateExpired:
		se.mu.Lock()
		se.over, se.ready, se.retired = true, false, true
		se.mu.Unlock()
		se.kick()
	case zk.StateDisconnected, zk.StateConnecting:
		se.mu.Lock()
		was := se.ready
		if se.ready = false; was {
			se.since = se.store.clock()
		}
		se.mu.Unlock()
		if was {
			se.kick()
		}
	}
}

func (se *session) kick() {
	select {
	case se.wake <- struct{}{}:
	default:
	}
}

func (se *session) blame(w *wire, err error) {
	addr := ""
	if a := w.RemoteAddr(); a != nil {
		addr = a.String()
	}
	se.blameAt(addr, err)
}

func (se *session) blameAt(addr string, err error) {
	if err == errRetired {
		return
	}
	se.mu.Lock()
	se.why = fmt.Errorf("%s: %w", addr, err)
	se.mu.Unlock()
}

// line says whether requests can go out now.
func (se *session) line() error {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.lineLocked()
}

func (se *session) lineLocked() error {
	switch {
	case se.over || se.retired:
		return se.store.noSession(zk.ErrSessionExpired)
	case !se.ready && se.why != nil:
		return se.store.noSession(se.why)
	case !se.ready:
		return se.store.noSession(errNoConnection)
	case se.suspect.Load():
		return se.store.noSession(errOverdue)
	}
	return nil
}

// enter counts a call that is about to go out, and says on which connection.
func (se *session) enter() (*wire, error) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if err := se.lineLocked(); err != nil {
		return nil, err
	}
	se.calls.Add(1) // before shut begins to wait, which is after over or retired
	return se.wire, nil
}

// call makes one call of the library, which takes no context and may wait for as
// long as there is no connection: it goes on without us when ctx ends.
func call[T any](ctx context.Context, se *session, quorum bool, f func(*zk.Conn) (T, error)) (T, error) {
	var zero T
	w, err := se.enter()
	if err != nil {
		return zero, err
	}
	type reply struct {
		v   T
		err error
	}
	sent := se.store.clock()
	done := make(chan reply, 1)
	var fate atomic.Int32 // 1: nobody waits any more; 2: it has ended
	go func() {
		defer se.calls.Done()
		v, err := f(se.conn)
		done <- reply{v, err}
		if quorum && !fate.CompareAndSwap(0, 2) {
			se.adrift.Add(-1)
		}
	}()
	select {
	case r := <-done:
		if v := judge(r.err); v == fine || v == refused {
			se.answered(w, sent, quorum && v == fine)
		} else if v == noLonger {
			se.expired()
		}
		return r.v, r.err
	case <-ctx.Done():
		if se.adrift.Add(1); !quorum || !fate.CompareAndSwap(0, 1) {
			se.adrift.Add(-1)
		}
		if time.Duration(se.store.clock()-sent) >= se.store.cfg.Timeout/2 {
			se.suspect.Store(true)
			se.kick()
		}
		return zero, ctx.Err()
	}
}

func (se *session) expired() {
	se.mu.Lock()
	se.over, se.ready, se.retired = true, false, true
	se.mu.Unlock()
	se.kick()
}

// answered notes that something asked at sent was answered on w, and moves the
// deadline when it went through the quorum: see doc.go, "The session's deadline".
func (se *session) answered(w *wire, sent int64, quorum bool) {
	now := se.store.clock()
	se.suspect.Store(false)
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.wire != w || !se.ready {
		return // it may have gone out on a later connection
	}
	if quorum {
		w.confirmed.Store(true)
		base := w.sent
		for _, t := range w.touches {
			if t.answered+int64(se.apart()) <= sent {
				base = max(base, t.sent)
			}
		}
		if until := cache.LeaseDeadline(base, int64(se.ttl)); until > se.until && !se.over {
			se.until = until
			se.store.publish(upstream.Session{No: se.no, Until: until})
		}
	}
	w.touch(touch{sent, now}, int64(se.apart()))
}

// saw records the transaction id of a reply. It ignores one that is out of range, which no fence can
// come from.
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

// apart is how far two requests have to be apart for the first to be known to the
// leader when the second has been answered.
func (se *session) apart() time.Duration { return se.ttl / 4 }

// touch keeps what can still matter: the newest that is old enough to count now,
// and of the others not more than a few.
func (w *wire) touch(t touch, apart int64) {
	const most = 64
	old := 0
	for old+1 < len(w.touches) && w.touches[old+1].answered+apart <= t.sent {
		old++
	}
	w.touches = slices.Delete(w.touches, 0, old)
	if n := len(w.touches); n > 1 && t.sent-w.touches[n-1].sent < apart/most {
		return // as good as the last one
	}
	w.touches = append(w.touches, t)
}

// stand is what results carry.
func (se *session) stand() (until int64, live bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.until, !se.over && se.store.clock() < se.until
}

// multi is a transaction: all of it or nothing.
func (se *session) multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	return call(ctx, se, true, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
}

// confirm asks the quorum whether the session stands: a transaction of one check
// that is always right. Whatever was asked on earlier connections is settled
// once it is answered, and whatever changed before it has been told to our watches.
func (se *session) confirm(ctx context.Context) error {
	_, err := se.multi(ctx, &zk.CheckVersionRequest{Path: se.store.root(), Version: -1})
	return err
}

// cut ends the present connection; the library goes to another server.
func (se *session) cut(w *wire) { _ = w.Close() }

// shut ends the session's goroutines here. What hangs on it at the server stays
// until it expires there, unless polite.
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

// drain waits for the calls under way, whose answers the library would write
// beside their readers if it were closed first.
func (se *session) drain() {
	done := make(chan struct{})
	go func() { se.calls.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(se.store.cfg.Timeout): // they end with the library then
	}
}
