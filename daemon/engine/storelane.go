package engine

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
)

// StoreLane is one store as the engine sees it, with its lanes.
type StoreLane struct {
	name     atomic.Pointer[string]
	parts    atomic.Pointer[[]Part] // see SetParts; nil when not known
	info     upstream.Info
	inline   upstream.Inline // nil if the store has no inline ops
	core     *cache.StoreTraits
	main     *upstream.Lane
	renewals *upstream.Lane
	ends     *upstream.Lane        // for a pair: releases and withdrawals while it is down
	schedule *renewer.Schedule     // of the leases at the store
	down     atomic.Pointer[error] // nil while it is up

	mu    sync.Mutex
	until int64 // the deadline of the store session; 0 without one; guarded by mu
	// sessionRenewals counts the renewals of that session, on which all leases depend. Guarded by mu.
	sessionRenewals cache.StoreStats
}

// countSessionRenewal counts a renewal of the store session, whose new deadline is until; 0 means
// that the session has ended.
func (sl *StoreLane) countSessionRenewal(until, now int64) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if until != 0 && sl.until != 0 {
		sl.sessionRenewals.Renewed++
		sl.sessionRenewals.Slack.Observe(sl.until - now)
	}
	sl.until = until
}

// sessionStats returns the statistics of the store session's renewals.
func (sl *StoreLane) sessionStats() cache.StoreStats {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	return sl.sessionRenewals
}

// Name returns the store's name.
func (sl *StoreLane) Name() string { return *sl.name.Load() }

// Info returns the abilities of the store.
func (sl *StoreLane) Info() *upstream.Info { return &sl.info }

// SetParts sets the stores that sl is made of: see Part.
func (sl *StoreLane) SetParts(parts []Part) { sl.parts.Store(&parts) }

// Main returns the lane of all ops except renewals.
func (sl *StoreLane) Main() *upstream.Lane { return sl.main }

// Renewals returns the lane of renewals.
func (sl *StoreLane) Renewals() *upstream.Lane { return sl.renewals }

// Ends returns the lane of releases and withdrawals of a pair that is down.
func (sl *StoreLane) Ends() *upstream.Lane { return sl.ends }

// lanes returns all lanes, in the order in which a snapshot has them.
func (sl *StoreLane) lanes() []*upstream.Lane {
	return []*upstream.Lane{sl.main, sl.renewals, sl.ends}
}

// depth returns how many ops wait in these lanes, and how many batches are in flight.
func depth(lanes ...*upstream.Lane) (waiting, flying int) {
	for _, l := range lanes {
		w, f := l.Depth()
		waiting, flying = waiting+w, flying+f
	}
	return waiting, flying
}

// nextRenewal returns when the next renewal is due. It returns cache.Forever without one, and also
// while the lane has as many renewals as can be sent next. Until a batch has returned, due leases
// stay in the schedule, where they cost nothing and the most urgent one is first.
func (sl *StoreLane) nextRenewal() int64 {
	if sl.renewals.Full() {
		return cache.Forever
	}
	return sl.schedule.Next()
}

// Down returns why the store is down; nil when it is up.
func (sl *StoreLane) Down() error {
	if p := sl.down.Load(); p != nil {
		return *p
	}
	return nil
}

// Part is a store as the configuration names it.
type Part struct {
	Name  string
	Place string // the same for two stores with the same locks
}

// AddStore adds a store under a name. inline is nil if the store has no inline ops.
func (e *Engine) AddStore(name string, info upstream.Info, inline upstream.Inline) (
	*StoreLane, error,
) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := slices.Clone(*e.storeLanes.Load())
	if slices.ContainsFunc(all, func(sl *StoreLane) bool {
		return sl != nil && sl.Name() == name
	}) {
		return nil, fmt.Errorf("duplicate store %q", name)
	}
	id := len(all) // a new number even after drops, because a late answer may name a dropped store
	set := e.settings()
	sl := &StoreLane{info: info, inline: inline,
		core: &cache.StoreTraits{ID: id, Session: info.Session > 0, SessionTTL: info.Session,
			TTLs: info.TTLs, Rebase: info.Rebase, Floors: info.Floors,
			Pair: info.Pair, Queue: info.Queue, Keeps: info.Keeps, Notice: info.Notice},
		main:     upstream.NewLane(set.InFlight, set.BatchSize),
		renewals: upstream.NewLane(set.InFlight, set.BatchSize),
		ends:     upstream.NewLane(set.InFlight, set.BatchSize),
		schedule: renewer.New(set.Table.Seed + uint64(id))}
	sl.name.Store(&name)
	if info.Gather {
		sl.main.Gather()
	}
	all = append(all, sl)
	e.storeLanes.Store(&all)
	return sl, nil
}

// Rename gives a store another name, so that its replacement can have the old one.
func (e *Engine) Rename(sl *StoreLane, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sl.name.Store(&name)
}

// DropStore forgets a store without users: no key is routed to it, no table has a lease there in
// any state, and no op is queued or in flight. Otherwise it returns false and changes nothing. A
// store without users gets no new ones, because no key is routed to it.
func (e *Engine) DropStore(sl *StoreLane) bool {
	e.routing.Lock()
	defer e.routing.Unlock()
	if e.routes.Load().uses(sl) {
		return false
	}
	if e.LeasesAt(sl) > 0 {
		return false
	}
	// No lease needs the renewals that wait. While a store is down, they would wait forever.
	sl.renewals.Discard()
	waiting, flying := depth(sl.lanes()...) // after the leases, because only leases add ops
	if waiting+flying > 0 {
		return false
	}
	e.mu.Lock()
	storeLanes := slices.Clone(*e.storeLanes.Load())
	storeLanes[sl.core.ID] = nil
	e.storeLanes.Store(&storeLanes)
	e.mu.Unlock()
	// The tables come last, because from here on forEachTableOf lets no news of the store reach them.
	for i := range e.shards {
		sh := e.lock(i)
		sh.table.Forget(sl.core)
		sh.mu.Unlock()
	}
	return true
}

// LeasesAt counts the leases that are, or may be, at a store or will be requested there next.
func (e *Engine) LeasesAt(sl *StoreLane) (n int) {
	for i := range e.shards {
		sh := e.lock(i)
		n += sh.table.Users(sl.core)
		sh.mu.Unlock()
	}
	return n
}

// StoreNamed returns the store with that name; nil if there is none.
func (e *Engine) StoreNamed(name string) *StoreLane {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, sl := range *e.storeLanes.Load() {
		if sl != nil && sl.Name() == name {
			return sl
		}
	}
	return nil
}

// Stores returns all stores.
func (e *Engine) Stores() []*StoreLane {
	return slices.DeleteFunc(slices.Clone(*e.storeLanes.Load()),
		func(sl *StoreLane) bool { return sl == nil })
}

// Known reports whether a table may still send requests with the token. Stores that sweep use it.
func (e *Engine) Known(sl *StoreLane, key string, token uint64) bool {
	sh := e.lock(shardOf(key))
	defer sh.mu.Unlock()
	return sh.table.Knows(sl.core, key, token)
}

// forEachTableOf is forEachTable that does nothing if the store has been dropped.
func (e *Engine) forEachTableOf(
	sl *StoreLane, tell func(t *cache.Table, now int64, out *cache.Effects),
) {
	e.forEachTable(func(t *cache.Table, now int64, out *cache.Effects) {
		if (*e.storeLanes.Load())[sl.core.ID] == sl {
			tell(t, now, out)
		}
	})
}

// maxUnflushed is how long forEachTable may leave output unflushed while it visits further tables.
// No other goroutine flushes sessions that are marked.
const maxUnflushed = int64(time.Millisecond)

// finishSome finishes a between two tables if output has waited since flushed for too long. It
// returns when a was last finished.
func (e *Engine) finishSome(flushed int64, a *followUp) int64 {
	now := e.clock()
	if now-flushed <= maxUnflushed {
		return flushed
	}
	e.finish(a, now, nil)
	return now
}

// forEachTable calls tell for every table, and carries out the effects.
func (e *Engine) forEachTable(tell func(t *cache.Table, now int64, out *cache.Effects)) {
	now := e.clock()
	a, flushed := getFollowUp(), now
	for i := range e.shards {
		e.settings().Step()
		flushed = e.finishSome(flushed, a)
		now = e.clock()
		sh := e.lock(i)
		tell(sh.table, now, &sh.out)
		e.carryOutAndUnlock(sh, now, a)
	}
	e.finish(a, now, nil)
	putFollowUp(a)
}

// StoreSession handles news of the store session.
func (e *Engine) StoreSession(sl *StoreLane, s upstream.Session) {
	if s.Lost {
		sl.countSessionRenewal(0, 0)
	} else {
		sl.countSessionRenewal(s.Until, e.clock())
	}
	if s.TTL > 0 {
		sl.core.Grants(s.TTL)
	}
	e.forEachTableOf(sl, func(t *cache.Table, now int64, out *cache.Effects) {
		if s.Lost {
			t.SessionLost(sl.core, s.No, now, out)
		} else {
			t.SessionUntil(sl.core, s.No, s.Until, now, out)
		}
	})
}

// StoreDown tells e that a store cannot be reached, and why.
func (e *Engine) StoreDown(sl *StoreLane, err error) {
	sl.down.Store(&err)
	e.forEachTableOf(sl, func(t *cache.Table, now int64, out *cache.Effects) {
		t.StoreDown(sl.core, err, now, out)
	})
}

// StoreUp tells e that a store can be reached again.
func (e *Engine) StoreUp(sl *StoreLane) {
	sl.down.Store(nil)
	e.forEachTableOf(sl, func(t *cache.Table, now int64, out *cache.Effects) {
		t.StoreUp(sl.core, now, out)
	})
}

// Hint handles a store's hint.
func (e *Engine) Hint(sl *StoreLane, h upstream.Hint) {
	now := e.clock()
	a := getFollowUp()
	sh := e.lock(shardOf(h.Key))
	sh.table.Hint(sl.core, h, now, &sh.out)
	e.carryOutAndUnlock(sh, now, a)
	e.finish(a, now, nil)
	putFollowUp(a)
}
