package engine

import (
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
)

// This file has the shards. Every event locks the shard of its key and passes the event to the
// table there. The table returns effects: messages for sessions, ops for stores, leases to renew,
// and notices for the log. carryOutAndUnlock passes them on to outboxes, lanes, the renewal
// schedule and a followUp. finish does the work that the followUp has collected, once no shard is
// locked.

// shards is the number of lock tables. It is at most 64, so that a session needs one word to mark
// the tables that have holds or waiters of it.
const shards = 64

// shard is a table and the mutex that guards it.
type shard struct {
	mu    sync.Mutex
	table *cache.Table
	out   cache.Effects // guarded by mu
	wake  atomic.Int64  // the next wake-up of the table, as the timer knows it
	index int           // in Engine.shards
	_     [64]byte      // so that two shards do not share a cache line
}

func shardOf[K ~string | ~[]byte](key K) int {
	return int(xxhash.Sum64([]byte(key)) % shards)
}

// lock locks shard i.
func (e *Engine) lock(i int) *shard {
	sh := &e.shards[i]
	sh.mu.Lock()
	return sh
}

// lockKey locks the shard of a key and returns the key's route. It reads the routes with the mutex
// held. A reload stores new routes before it visits each table with the mutex held. So a request
// that comes after the visit never uses an earlier route.
func (e *Engine) lockKey(key []byte) (sh *shard, rt *route) {
	sh = e.lock(shardOf(key))
	return sh, routeFor(e.routes.Load(), key)
}

// carryOutAndUnlock carries out the effects of an event in a shard, in their order, and unlocks the
// shard. It adds to a the work that has to wait until no shard is locked.
func (e *Engine) carryOutAndUnlock(sh *shard, now int64, a *followUp) {
	e.pushOps(sh, now, a) // first, because inline answers have effects, too
	e.sendMessages(sh, now, a)
	if e.observer != nil {
		a.notices = append(a.notices, sh.out.Notices...)
	}
	e.trackRenewals(sh, now, a)
	sh.out.Reset()
	if at := sh.table.NextWake(); at != sh.wake.Load() {
		sh.wake.Store(at)
		e.wake(at)
	}
	sh.mu.Unlock()
}

// pushOps puts the ops for stores into their lanes. An op that a store answers inline is answered
// here.
func (e *Engine) pushOps(sh *shard, now int64, a *followUp) {
	out, storeLanes := &sh.out, *e.storeLanes.Load()
	for n := 0; n < len(out.Ops); n++ { // inline answers can append more
		op := &out.Ops[n]
		sl := storeLanes[op.Store]
		if sl.inline != nil {
			var r cache.Result
			if sl.inline.ApplyInline(op, &r) {
				o := *op // out.Ops may move
				sh.table.Result(&o, &r, now, now, out)
				continue
			}
		}
		switch {
		case op.Kind == cache.OpRenew:
			sl.renewals.Push(*op)
			a.addWork(sl, workRenewals)
		case sl.info.Pair && op.Kind.Ends() && sl.Down() != nil:
			// The op ends a token at both stores of a pair. One of them may be reachable, although
			// the pair counts as down, and the pump refuses the ops of main then.
			sl.ends.Push(*op)
			a.addWork(sl, workEnds)
		default:
			sl.main.Push(*op)
			a.addWork(sl, workMain)
		}
	}
}

// sendMessages puts the table's answers and pushes into the outboxes of their sessions. finish
// passes on the answers to the engine's own requests, because they cause further requests.
func (e *Engine) sendMessages(sh *shard, now int64, a *followUp) {
	for n := range sh.out.Messages {
		m := &sh.out.Messages[n]
		switch r := m.Re.InternalReply.(type) {
		case nil:
			e.send(m, now, a)
		case *quietRelease:
			if m.Kind != cache.MsgReleased {
				e.send(m, now, a)
			}
			r.free()
		default:
			if r, ok := m.Re.InternalReply.(recorder); ok {
				r.record(e, m, now, a)
			}
			a.replies = append(a.replies, *m)
		}
	}
}

// trackRenewals tells the renewal schedules which leases to renew from now on, and which leases to
// forget.
func (e *Engine) trackRenewals(sh *shard, now int64, a *followUp) {
	storeLanes := *e.storeLanes.Load()
	for n := range sh.out.Tracks {
		tr := &sh.out.Tracks[n]
		sl := storeLanes[tr.Store]
		sl.schedule.Track(tr, sh.index, now)
		a.addWork(sl, workTimer)
	}
}

// Deliver handles the results of a batch from a store. A pump calls it.
func (e *Engine) Deliver(b *upstream.Batch) {
	now := e.clock()
	a := getFollowUp()
	for n := range b.Ops {
		sh := e.lock(shardOf(b.Ops[n].Key))
		sh.table.Result(&b.Ops[n], &b.Results[n], b.Sent, now, &sh.out)
		e.carryOutAndUnlock(sh, now, a)
	}
	// The lane has room for further renewals now. nextRenewal returned Forever while it was full.
	if op := &b.Ops[0]; op.Kind == cache.OpRenew {
		a.addWork((*e.storeLanes.Load())[op.Store], workTimer)
	}
	e.finish(a, now, nil)
	putFollowUp(a)
}

// followUp collects the work to do when no shard's mutex is held.
type followUp struct {
	touched []*Session      // with new output, to be flushed
	notices []cache.Notice  // for the observer
	replies []cache.Message // to requests of the engine itself
	work    []laneWork      // of lanes that have to be woken
	due     []renewer.Due   // used by Tick alone: leases that are due for renewal
}

// laneWork is new work for the goroutines of a store.
type laneWork struct {
	sl    *StoreLane
	where uint8 // a set of the constants below
}

const (
	workMain     = 1 << iota // ops in its main lane
	workRenewals             // ops in its renewal lane
	workEnds                 // ops in its lane of ends
	workTimer                // its next renewal may be due earlier
)

// addWork adds work of a store. A search of the list is cheap, because a request rarely concerns
// two stores.
func (a *followUp) addWork(sl *StoreLane, where uint8) {
	for i := range a.work {
		if a.work[i].sl == sl {
			a.work[i].where |= where
			return
		}
	}
	a.work = append(a.work, laneWork{sl, where})
}

// finish does the work that must not be done with mutexes held. It flushes own, the session whose
// request is being handled, last: a client that gets the lock by handoff has waited longer.
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
	if len(a.work) > 0 {
		e.wakeLanes(a)
	}
	mine := false
	for _, s := range a.touched {
		s.unmark() // first, so that output which comes during the flush marks it again
		if s == own {
			mine = true
			continue
		}
		s.flush()
	}
	if mine {
		own.flush()
	}
	clear(a.touched)
	a.touched = a.touched[:0]
}

// wakeLanes wakes the goroutines that have new work.
func (e *Engine) wakeLanes(a *followUp) {
	for _, w := range a.work {
		if w.where&workMain != 0 {
			w.sl.main.Kick()
		}
		if w.where&workRenewals != 0 {
			w.sl.renewals.Kick()
		}
		if w.where&workEnds != 0 {
			w.sl.ends.Kick()
		}
		if w.where&workTimer != 0 {
			e.wake(w.sl.nextRenewal())
		}
	}
	clear(a.work)
	a.work = a.work[:0]
}

var followUps = sync.Pool{New: func() any { return new(followUp) }}

func getFollowUp() *followUp { return followUps.Get().(*followUp) }

func putFollowUp(a *followUp) { followUps.Put(a) }

// internalReply receives the table's answer to a request made by the engine. It is called without
// mutexes held.
type internalReply interface {
	answered(e *Engine, m *cache.Message, now int64, a *followUp)
}

// recorder is an internalReply that also has to know of the answer before anything else happens to
// the key. record is called with the shard's mutex held, before answered.
type recorder interface {
	record(e *Engine, m *cache.Message, now int64, a *followUp)
}

// quietRelease is the InternalReply of a quiet release, to which success sends no answer. It has
// the fields of the push release-failed, for a failure. It does not implement internalReply:
// sendMessages handles it, and frees it once the release is answered.
type quietRelease struct {
	key          []byte
	owner, fence uint64
}

var quietReleases = sync.Pool{New: func() any { return new(quietRelease) }}

func newQuietRelease(q *protocol.Request) *quietRelease {
	r := quietReleases.Get().(*quietRelease)
	r.key, r.owner, r.fence = append(r.key[:0], q.Key...), q.Owner, q.Fence
	return r
}

func (r *quietRelease) free() { quietReleases.Put(r) }
