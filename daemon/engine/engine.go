package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
)

// shards is the number of lock tables. It is at most 64, so that a session needs one word to mark the
// tables that have holds or waiters of it.
const shards = 64

// Settings configures an engine.
type Settings struct {
	Table     cache.Config // the engine sets Shard and Shards
	Users     UserLimits
	MaxFrame  int // bytes
	OutBuffer int // maximum number of bytes that wait for a client to read them
	Version   string
	InFlight  int // maximum number of batches in flight, for each lane of a store
	BatchSize int
	Survey    int    // maximum number of holds in one part of a survey; 0 for maxSurvey
	Wakes     int    // maximum number of wake-ups of one shard, and of renewals at one store, in one Tick; 0 for maxWakes
	FirstID   uint64 // of sessions
	Trace     bool   // acquires with a trace context become spans
}

// Query reads a store. It returns a function that runs afterwards, concurrently with other queries, and may ask other
// hosts. A freeze waits for both. The context of the function ends when a freeze begins, and the context of the query
// soon after.
type Query func(ctx context.Context, lister func(*StoreLane) upstream.Lister) (then func(context.Context))

// SetQueries sets the function that runs queries of stores on another goroutine. It is called before the first
// session. Without it, the engine answers from its tables alone.
func (e *Engine) SetQueries(run func(Query)) { e.ask = run }

// SetSelf sets the entry of this daemon in its stores. It is called before the first session.
func (e *Engine) SetSelf(r upstream.Registration) { e.self = r }

// Self returns the entry of this daemon in its stores.
func (e *Engine) Self() upstream.Registration { return e.self }

// Draining reports whether Drain has been called.
func (e *Engine) Draining() bool { return e.draining.Load() }

// CountFault counts a connection that is refused before it has a session.
func (e *Engine) CountFault(c protocol.Code) { e.faults.add(c) }

// ErrDraining says that no new locks can be acquired, because Drain has been called or is about to be.
var ErrDraining = errors.New("draining")

// Ready returns why new locks cannot be acquired now: the engine drains, or the store of a namespace is down and this
// host does not decide alone. It returns nil if they can.
func (e *Engine) Ready() error {
	if e.Draining() {
		return ErrDraining
	}
	for _, sp := range e.routes.Load().sorted() {
		if err := sp.Down(); err != nil && !sp.Local {
			return fmt.Errorf("store %s is down: %w", sp.Name(), err)
		}
	}
	return nil
}

// EachMoved calls f for each held lease whose key is routed to another store than the one where it is. A shard's
// mutex is held.
func (e *Engine) EachMoved(f func(key string, from, to *StoreLane)) {
	storeLanes := *e.storeLanes.Load()
	for i := range e.shards {
		sh := e.lock(i)
		sh.table.EachMoved(func(key string, from, to *cache.Store) { f(key, storeLanes[from.ID], storeLanes[to.ID]) })
		sh.mu.Unlock()
	}
}

// ErrTakeover is the error of a query that a takeover has cut.
var ErrTakeover = errors.New("another process is taking over; ask again")

// queryError returns why a query with this context has failed with err.
func queryError(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), ErrTakeover) {
		return ErrTakeover
	}
	return err
}

// Engine is one host's lock service, without sockets and goroutines.
type Engine struct {
	set   atomic.Pointer[Settings]
	clock upstream.Clock
	wake  func(at int64)

	shards     [shards]shard
	storeLanes atomic.Pointer[[]*StoreLane] // by the stores' numbers, nil for a dropped store; written under mu
	// routing is held while stores are added or dropped and while routes change. It is taken before mu
	// and the shards' mutexes. To access a table, routes is read with the shard's mutex held (lockKey).
	routing  sync.Mutex
	routes   atomic.Pointer[routeTable]
	cycles   cycles
	classes  classes
	faults   codeCounts  // sessions that the daemon has ended
	observer Observer    // nil for none
	audit    atomic.Bool // the observer is told of more than losses
	// ask runs a query of a store on another goroutine; nil when there is no store to query.
	ask func(Query)

	draining      atomic.Bool
	nextKeepalive atomic.Int64

	// Used by Tick alone.
	surveys     []survey
	surveyAt    int64 // no survey continues before this time
	surveyPause int64 // between two parts of the surveys

	scanning   sync.Mutex // held while a view is made; taken before the shards' mutexes
	maxScanned int        // the constant maxScanned, except in tests; guarded by scanning

	self upstream.Registration // this daemon's entry in its stores; set before the first session

	mu       sync.Mutex
	sessions map[uint64]*Session // guarded by mu
	users    users               // guarded by mu
	lastID   uint64              // guarded by mu
}

// shard is a table and the mutex that guards it.
type shard struct {
	mu    sync.Mutex
	table *cache.Table
	out   cache.Effects // guarded by mu
	wake  atomic.Int64  // the latest wake-up that the table has requested
	_     [64]byte      // keep neighbours off each other's cache line
}

// NewEngine returns an engine without stores. AddStore and Route have to be called before the first session. The
// engine calls wake, with mutexes held, to request a call of Tick at a time; wake must not block.
func NewEngine(set Settings, clock upstream.Clock, wake func(at int64)) *Engine {
	set.Survey, set.Wakes = cmp.Or(set.Survey, maxSurvey), cmp.Or(set.Wakes, maxWakes)
	e := &Engine{
		clock: clock, wake: wake,
		sessions: make(map[uint64]*Session), users: make(users), maxScanned: maxScanned,
		lastID: set.FirstID,
	}
	e.set.Store(&set)
	e.storeLanes.Store(&[]*StoreLane{})
	e.nextKeepalive.Store(cache.Forever)
	for i := range e.shards {
		c := set.Table
		c.Shard, c.Shards = i, shards
		e.shards[i].table = cache.New(c)
		e.shards[i].wake.Store(cache.Forever)
	}
	return e
}

func (e *Engine) settings() *Settings { return e.set.Load() }

// SetLimits changes the limits of clients from now on.
func (e *Engine) SetLimits(l Limits) {
	e.mu.Lock()
	set := *e.settings()
	set.Table.MaxHolds, set.Table.MaxWaiters = int64(l.MaxHolds), int64(l.MaxWaiters)
	set.Users, set.MaxFrame, set.OutBuffer = l.Users, l.MaxFrame, l.OutBuffer
	e.set.Store(&set)
	for _, u := range e.users {
		u.limit(l.Users)
	}
	e.mu.Unlock()
	for i := range e.shards {
		sh := e.lock(i)
		sh.table.SetLimits(int64(l.MaxHolds), int64(l.MaxWaiters))
		sh.mu.Unlock()
	}
}

func shardOf[K ~string | ~[]byte](key K) int {
	return int(xxhash.Sum64([]byte(key)) % shards)
}

// followUp collects the work to do when no shard's mutex is held: answers to requests of the engine itself, lanes
// to wake, and sessions to flush.
type followUp struct {
	touched []*Session
	notices []cache.Notice
	due     []renewer.Due
	replies []cache.Message
	kicks   []kick
}

// kick is a store whose goroutines have new work once the locks are released.
type kick struct {
	u    *StoreLane
	what uint8
}

const (
	kickMain  = 1 << iota // ops in its main lane
	kickRenew             // ops in its renewal lane
	kickEnds              // ops in its lane of ends
	kickTimer             // its next renewal may be due earlier
)

// kick adds work of a store. A search of the list is cheap, because a request rarely concerns two stores.
func (a *followUp) kick(u *StoreLane, what uint8) {
	for i := range a.kicks {
		if a.kicks[i].u == u {
			a.kicks[i].what |= what
			return
		}
	}
	a.kicks = append(a.kicks, kick{u, what})
}

// lock locks shard i.
func (e *Engine) lock(i int) *shard {
	sh := &e.shards[i]
	sh.mu.Lock()
	return sh
}

// lockKey locks the shard of a key and returns the key's route. New routes are stored before Reroute visits
// each table under its shard's mutex. So a request after that visit never brings an earlier route.
func (e *Engine) lockKey(key []byte) (sh *shard, i int, sp *route) {
	i = shardOf(key)
	sh = e.lock(i)
	return sh, i, routeFor(e.routes.Load(), key)
}

// unlock carries out the table's effects, in their order, and unlocks the shard.
func (e *Engine) unlock(sh *shard, i int, now int64, a *followUp) {
	out, storeLanes := &sh.out, *e.storeLanes.Load()
	for n := 0; n < len(out.Ops); n++ { // inline answers can append more
		op := &out.Ops[n]
		u := storeLanes[op.Store]
		if u.inline != nil {
			var r cache.Result
			if u.inline.ApplyInline(op, &r) {
				o := *op // out.Ops may move
				sh.table.Result(&o, &r, now, now, out)
				continue
			}
		}
		switch {
		case op.Kind == cache.OpRenew:
			u.renewals.Push(*op)
			a.kick(u, kickRenew)
		case u.info.Pair && op.Kind.Ends() && u.Down() != nil:
			u.ends.Push(*op)
			a.kick(u, kickEnds)
		default:
			u.main.Push(*op)
			a.kick(u, kickMain)
		}
	}
	for n := range out.Messages {
		m := &out.Messages[n]
		switch m.Re.InternalReply.(type) {
		case nil:
			e.send(m, now, a)
		case quiet:
			if m.Kind != cache.MsgReleased {
				e.send(m, now, a)
			}
		default:
			a.replies = append(a.replies, *m)
		}
	}
	if e.observer != nil {
		a.notices = append(a.notices, out.Notices...)
	}
	for n := range out.Tracks {
		tr := &out.Tracks[n]
		u := storeLanes[tr.Store]
		u.schedule.Track(tr, i, now)
		a.kick(u, kickTimer)
	}
	out.Reset()
	if at := sh.table.NextWake(); at != sh.wake.Load() {
		sh.wake.Store(at)
		e.wake(at)
	}
	sh.mu.Unlock()
}

// finish does the work that must not be done with mutexes held. It flushes the session of the request last, because
// a client that gets the lock by handoff has waited longer.
func (e *Engine) finish(a *followUp, now int64, own *Session) {
	for n := 0; n < len(a.replies); n++ {
		m := a.replies[n]
		m.Re.InternalReply.(internalReply).answered(e, &m, now, a)
	}
	clear(a.replies)
	a.replies = a.replies[:0]
	if len(a.notices) > 0 {
		e.observer.Notices(a.notices)
		clear(a.notices)
		a.notices = a.notices[:0]
	}
	if len(a.kicks) > 0 {
		e.kick(a)
	}
	mine := false
	for _, s := range a.touched {
		s.unmark()
		if s == own {
			mine = true
			continue
		}
		s.transport.Flush()
	}
	if mine {
		own.transport.Flush()
	}
	clear(a.touched)
	a.touched = a.touched[:0]
}

// kick wakes the lanes that have new work.
func (e *Engine) kick(a *followUp) {
	for _, k := range a.kicks {
		if k.what&kickMain != 0 {
			k.u.main.Kick()
		}
		if k.what&kickRenew != 0 {
			k.u.renewals.Kick()
		}
		if k.what&kickEnds != 0 {
			k.u.ends.Kick()
		}
		if k.what&kickTimer != 0 {
			e.wake(k.u.nextRenewal())
		}
	}
	clear(a.kicks)
	a.kicks = a.kicks[:0]
}

// Deliver takes in the results of a batch from a store.
func (e *Engine) Deliver(b *upstream.Batch) {
	now := e.clock()
	a := getFollowUp()
	for n := range b.Ops {
		i := shardOf(b.Ops[n].Key)
		sh := e.lock(i)
		sh.table.Result(&b.Ops[n], &b.Results[n], b.Sent, now, &sh.out)
		e.unlock(sh, i, now, a)
	}
	if op := &b.Ops[0]; op.Kind == cache.OpRenew { // its lane may take more now
		a.kick((*e.storeLanes.Load())[op.Store], kickTimer)
	}
	e.finish(a, now, nil)
	putFollowUp(a)
}

// maxWakes bounds the wake-ups of one shard, and the renewals at one store, that one Tick carries out.
const maxWakes = 128

// Tick does the work that is due: ends of waits and leases, renewals, keepalives. It returns when it has to be
// called next.
func (e *Engine) Tick() int64 {
	now, wakes := e.clock(), e.settings().Wakes
	a := getFollowUp()
	defer putFollowUp(a)
	for i := range e.shards {
		if e.shards[i].wake.Load() > now {
			continue
		}
		sh := e.lock(i)
		sh.table.Tick(now, wakes, &sh.out)
		e.unlock(sh, i, now, a)
	}
	storeLanes := *e.storeLanes.Load()
	for _, u := range storeLanes {
		if u != nil && u.nextRenewal() <= now {
			a.due = u.schedule.Due(now, wakes, a.due)
		}
	}
	for _, d := range a.due {
		sh := e.lock(d.Shard)
		sh.table.RenewDue(d.Lease, d.Gen, now, &sh.out)
		e.unlock(sh, d.Shard, now, a)
	}
	clear(a.due)
	a.due = a.due[:0]
	next := e.keepalives(now, a)
	e.finish(a, now, nil)
	next = min(next, e.nextKeepalive.Load())
	for _, u := range storeLanes {
		if u != nil {
			next = min(next, u.nextRenewal())
		}
	}
	for i := range e.shards {
		next = min(next, e.shards[i].wake.Load())
	}
	return next
}

var followUps = sync.Pool{New: func() any { return new(followUp) }}

func getFollowUp() *followUp  { return followUps.Get().(*followUp) }
func putFollowUp(a *followUp) { followUps.Put(a) }
