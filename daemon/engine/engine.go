package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// This file has the engine itself, its settings, and the work that is due at certain times.

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
	Wakes     int    // replaces maxWakes, if not 0
	FirstID   uint64 // the number before the first session's
	Trace     bool   // acquires with a trace context become spans
	// Step is called between two steps of work that visits one table after the other, while no
	// shard is locked. Other events can come between the steps. It is for the simulator; nil for
	// none.
	Step func()
}

// Query reads a store. It returns a function that runs afterwards, concurrently with other queries,
// and may ask other hosts. A freeze waits for both. The context of the function ends when a freeze
// begins, and the context of the query soon after.
type Query func(ctx context.Context, of CapabilitiesOf) (then func(context.Context))

// CapabilitiesOf returns the capabilities of a store. It returns none for a store that has been
// dropped.
type CapabilitiesOf func(*StoreLane) upstream.Capabilities

// SetQueries sets the function that runs queries of stores on another goroutine. It is called
// before the first session. Without it, the engine answers from its tables alone.
func (e *Engine) SetQueries(run func(Query)) { e.ask = run }

// SetSelf sets the entry of this daemon in its stores. It is called before the first session.
func (e *Engine) SetSelf(r upstream.Registration) { e.self = r }

// Self returns the entry of this daemon in its stores.
func (e *Engine) Self() upstream.Registration { return e.self }

// Draining reports whether Drain has been called.
func (e *Engine) Draining() bool { return e.draining.Load() }

// CountFault counts a connection that is refused before it has a session.
func (e *Engine) CountFault(c protocol.Code) { e.faults.add(c) }

// ErrDraining says that no new locks can be acquired, because Drain has been called or is about
// to be.
var ErrDraining = errors.New("draining")

// Ready returns why new locks cannot be acquired now: the engine drains, or the store of a
// namespace is down and this host does not decide alone. It returns nil if they can.
func (e *Engine) Ready() error {
	if e.Draining() {
		return ErrDraining
	}
	for _, rt := range e.routes.Load().sorted() {
		if err := rt.Down(); err != nil && !rt.Local {
			return fmt.Errorf("store %s is down: %w", rt.Name(), err)
		}
	}
	return nil
}

// EachMoved calls f for each held lease whose key is routed to another store than the one where
// it is. A shard's mutex is held.
func (e *Engine) EachMoved(f func(key string, from, to *StoreLane)) {
	storeLanes := *e.storeLanes.Load()
	for i := range e.shards {
		sh := e.lock(i)
		sh.table.EachMoved(func(key string, from, to *cache.StoreTraits) {
			f(key, storeLanes[from.ID], storeLanes[to.ID])
		})
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
	storeLanes atomic.Pointer[[]*StoreLane] // by store number; nil if dropped; written under mu
	// routing is held while stores are added or dropped and while routes change. It is taken before
	// mu and the shards' mutexes. To access a table, routes is read with the shard's mutex held
	// (lockKey).
	routing   sync.Mutex
	routes    atomic.Pointer[routeTable]
	cycles    cycles
	classes   classes
	faults    codeCounts  // sessions that the daemon has ended
	observer  Observer    // nil for none
	audit     atomic.Bool // the observer gets more notices than losses
	operators atomic.Pointer[Access]
	// ask runs a query of a store on another goroutine; nil when there is no store to query.
	ask func(Query)

	draining      atomic.Bool
	anyStart      atomic.Uint64 // spreads acquire-anys over their keys
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

// NewEngine returns an engine without stores. AddStore and Route have to be called before the
// first session. The engine calls wake, with mutexes held, to request a call of Tick at a time;
// wake must not block.
func NewEngine(set Settings, clock upstream.Clock, wake func(at int64)) *Engine {
	set.Survey, set.Wakes = cmp.Or(set.Survey, maxSurvey), cmp.Or(set.Wakes, maxWakes)
	if set.Step == nil {
		set.Step = func() {}
	}
	e := &Engine{
		clock: clock, wake: wake,
		sessions: make(map[uint64]*Session), users: make(users), maxScanned: maxScanned,
		lastID: set.FirstID,
	}
	e.set.Store(&set)
	e.anyStart.Store(set.Table.Seed >> 1)
	e.operators.Store(new(Access))
	e.storeLanes.Store(&[]*StoreLane{})
	e.nextKeepalive.Store(cache.Forever)
	for i := range e.shards {
		c := set.Table
		c.Shard, c.Shards = i, shards
		e.shards[i].table = cache.New(c)
		e.shards[i].index = i
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
		e.settings().Step()
		sh := e.lock(i)
		sh.table.SetLimits(int64(l.MaxHolds), int64(l.MaxWaiters))
		sh.mu.Unlock()
	}
}

// maxWakes bounds the wake-ups of one shard, and the renewals at one store, that one Tick carries
// out.
const maxWakes = 128

// Tick does the work that is due: ends of waits and leases, renewals, keepalives. It returns when
// it has to be called next.
func (e *Engine) Tick() int64 {
	now, wakes := e.clock(), e.settings().Wakes
	a, flushed := getFollowUp(), now
	defer putFollowUp(a)
	for i := range e.shards {
		if e.shards[i].wake.Load() > now {
			continue
		}
		sh := e.lock(i)
		sh.table.Tick(now, wakes, &sh.out)
		e.carryOutAndUnlock(sh, now, a)
		flushed = e.finishSome(flushed, a) // a store session may have ended, with every lease
	}
	storeLanes := *e.storeLanes.Load()
	for _, sl := range storeLanes {
		if sl != nil && sl.nextRenewal() <= now {
			a.due = sl.schedule.Due(now, wakes, a.due)
		}
	}
	for _, d := range a.due {
		sh := e.lock(d.Shard)
		sh.table.RenewDue(d.Lease, d.Token, now, &sh.out)
		e.carryOutAndUnlock(sh, now, a)
	}
	clear(a.due)
	a.due = a.due[:0]
	next := e.keepalives(now, a)
	e.finish(a, now, nil)
	next = min(next, e.nextKeepalive.Load())
	for _, sl := range storeLanes {
		if sl != nil {
			next = min(next, sl.nextRenewal())
		}
	}
	for i := range e.shards {
		next = min(next, e.shards[i].wake.Load())
	}
	return next
}
