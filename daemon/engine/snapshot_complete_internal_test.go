package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
)

// derived has the fields of an engine that its snapshot omits, each with the reason.
var derived = map[string]string{
	"engine.Engine.set":             "from the configuration",
	"engine.Engine.clock":           "each process has its own",
	"engine.Engine.routing":         "a mutex",
	"engine.Engine.routes":          "from the configuration; the snapshot has the earlier stores and epochs",
	"engine.Engine.observer":        "the daemon's",
	"engine.Engine.audit":           "from the configuration",
	"engine.Engine.anyStart":        "any value will do",
	"engine.Engine.operators":       "from the configuration",
	"engine.Engine.draining":        "nothing is passed on by a daemon that drains",
	"engine.Engine.nextKeepalive":   "follows from the sessions' keepaliveAt",
	"engine.Engine.surveys":         "a survey in progress starts again",
	"engine.Engine.surveyAt":        "part of a survey",
	"engine.Engine.surveyPause":     "part of a survey",
	"engine.Engine.scanning":        "a mutex",
	"engine.Engine.maxScanned":      "constant except in tests",
	"engine.Engine.users":           "counted again from sessions, holds and waiters; a user's pace starts again",
	"engine.Engine.sessions (keys)": "the session's own number",
	"engine.Engine.self":            "the next process registers itself",
	"engine.cycles.next":            "the next process checks at once",
	"engine.cycles.seen":            "a remaining cycle is reported once more",
	"engine.shard.out":              "empty between events",
	"engine.shard.index":            "its place in the array",
	"engine.shard.wake":             "the table's NextWake",
	"engine.shard._":                "padding",

	"engine.StoreLane.info":            "from the driver",
	"engine.StoreLane.inline":          "from the driver",
	"engine.StoreLane.parts":           "from the configuration",
	"engine.StoreLane.schedule":        "rebuilt from each lease's Renewal",
	"engine.StoreLane.until":           "the store session reports it again",
	"engine.StoreLane.sessionRenewals": "counters of this process",
	"cache.StoreTraits.ID":             "each process numbers its stores; the snapshot names stores by their number in the snapshot",
	"cache.StoreTraits.granted":        "the driver states it again",
	"cache.StoreTraits.Session":        "from the driver", "cache.StoreTraits.SessionTTL": "from the driver",
	"cache.StoreTraits.TTLs": "from the driver", "cache.StoreTraits.Rebase": "from the driver",
	"cache.StoreTraits.Floors": "from the driver", "cache.StoreTraits.Pair": "from the driver",
	"cache.StoreTraits.Queue": "from the driver", "cache.StoreTraits.Notice": "from the driver",
	"cache.StoreTraits.Keeps": "from the driver",

	"upstream.Lane.free":        "spare batches",
	"upstream.Lane.renewed":     "used again by each call",
	"upstream.Lane.inFlight":    "nothing is in flight when a snapshot is made",
	"upstream.Lane.maxInFlight": "from the configuration",
	"upstream.Lane.maxOps":      "from the configuration",
	"upstream.Lane.gathers":     "from the driver",
	"upstream.Lane.usual":       "a mean that soon settles again",
	"upstream.Lane.stats":       "counters of this process",
	"upstream.queue.head":       "an index",
	"upstream.queue.n":          "the number of ops",
	"upstream.queue.spare":      "spare",
	"cache.Op.Ref":              "found again by key and generation",
	"cache.Op.Store":            "the lane's", "cache.Op.For": "its session's count of answers starts again",

	"engine.Session.engine": "each process has its own", "engine.Session.pace": "the user's",
	"engine.Session.transport": "the connection's",
	"engine.Session.queries":   "none is open when a snapshot is made",
	"engine.Session.req":       "valid during one call",
	"engine.Session.after":     "valid during one call",
	"engine.Session.AuditTail": "made again", "engine.Session.touched": "valid during one call",
	"engine.Session.ended":     "an ended session is not in the snapshot",
	"engine.Session.offered":   "set again by the next flush",
	"engine.Session.surveyed":  "a survey in progress starts again",
	"engine.Session.delayed":   "readers have ended when a snapshot is made",
	"engine.Session.spans":     "open spans do not cross a takeover",
	"cache.Session.User":       "found again by uid",
	"cache.Session.Holds":      "counted again",
	"cache.Session.Waiters":    "counted again",
	"cache.Session.Asks":       "counted again",
	"cache.Session.Shards":     "marked again",
	"cache.Session.Ended":      "follows from killed",
	"cache.Session.Shell":      "the session itself",
	"cache.Session.isDetached": "of a user's record",
	"cache.Session.index":      "of the holds and waiters",
	"engine.several.s":         "the session that has it", "engine.several.classes": "of the keys",
	"cache.Acquire.Re":       "of the many",
	"cache.Acquire.NS":       "of the key",
	"cache.Acquire.Key":      "of the keys",
	"cache.Acquire.TTL":      "of the ttls",
	"cache.Acquire.Limit":    "there are no multi-acquires of permits",
	"cache.Acquire.Draining": "set again by each request",
	"cache.Acquire.Keep":     "there are no multi-acquires with a keep",
	"cache.Acquire.TryUntil": "set again by each request",

	"cache.Table.locks (keys)":      "the lock's own key",
	"cache.Table.semaphores (keys)": "the semaphore's own key",
	"cache.Table.cfg":               "from the configuration",
	"cache.Table.noLinger":          "set by a drain",
	"cache.Table.timers":            "rebuilt from leases and waiters",
	"cache.Table.forced":            "counted again",
	"cache.Table.waits":             "rebuilt by since",
	"cache.Table.holds":             "rebuilt by since",
	"cache.Table.places":            "part of a view in progress",
	"cache.Table.toAdvance":         "those of leases with waiters again, until Reroute",
	"cache.Table.leaving":           "empty after Reroute",
	"cache.Table.freeLocks":         "spare", "cache.Table.freePermits": "spare",
	"cache.Table.dropped": "spare", "cache.Table.freeHolds": "spare",
	"cache.Table.freeReleased": "spare", "cache.Table.freeWaits": "spare",
	"cache.Renewal.Index": "an index", "cache.Renewal.Shard": "the table's",
	"cache.leaseState.ns":       "the route of the key",
	"cache.Lease.kind":          "the lock, semaphore or permit that has it",
	"cache.permit.of":           "the semaphore that has it",
	"cache.permit.place":        "an index",
	"cache.leaseState.timerIdx": "an index", "cache.leaseState.dropped": "false while the table has it",
	"cache.leaseState.nHolds": "how many holds follow",
	"cache.waitQueue.n":       "how many waiters follow", "cache.waitQueue.byOwner": "an index",
	"cache.waitQueue.tries": "counted again", "cache.waitQueue.writers": "counted again",
	"cache.optionalFields.byOwner": "an index",
	"cache.optionalFields.keeps":   "with the holds",
	"cache.semaphore.taken":        "counted again", "cache.semaphore.byFence": "an index",
	"cache.hold.l":   "the lease that has it",
	"cache.waiter.l": "the lease that has it", "cache.waiter.timerIdx": "an index",
	"cache.storeRecord.users": "counted again", "cache.storeRecord.held": "counted again",
	"cache.storeRecord.moved": "counted again",
	"cache.Stats.Holds":       "counted again", "cache.Stats.Waiters": "counted again",
	"cache.StoreStats.Held":  "filled in for readers",
	"cache.StoreStats.Moved": "filled in for readers",
	"cache.habits.evicted":   "nil between events",
}

// names has the fields by which a snapshot refers to things. The snapshot has them, but a test
// cannot change one alone.
var names = map[string]bool{"cache.Session.ID": true, "cache.leaseState.key": true,
	"cache.hold.class": true, "cache.releasedHold.class": true,
	"engine.class.prefix": true, "engine.class.name": true}

func snapshotOf(e *Engine) (snapshot []byte, err error) {
	snapshot, _, err = e.Snapshot()
	return snapshot, err
}

// Every field of an engine, with its sessions, leases, holds and waiters, is in the snapshot and
// taken over from it. The exceptions are listed in derived.
func TestTheSnapshotHasEveryFieldThatIsNotDerived(t *testing.T) {
	d := newRich(t)
	storetest.Complete{Root: d.e, LeftOut: derived, Names: names, Another: func() any {
		return discardReply{}
	},
		Snapshot: func() ([]byte, error) { return snapshotOf(d.e) },
		Again: func(snapshot []byte) ([]byte, error) {
			next := d.twin()
			if _, err := next.Take(snapshot, nil); err != nil {
				return nil, err
			}
			return snapshotOf(next)
		},
	}.Check(t)
}

// newRich returns an engine with every kind of state.
func newRich(t *testing.T) *twoStores {
	d := newTwoStores(t)
	d.route(richSpaces...)
	ms := func(d time.Duration) uint64 { return uint64(d / time.Millisecond) }
	id := uint64(100)
	ask := func(q protocol.Request) {
		id++
		q.ID = id
		send(d.s, &q)
	}
	acquire := func(key string, owner uint64, mode protocol.Mode, wait int64, flags uint64) {
		ask(protocol.Request{Op: protocol.OpAcquire, Key: []byte(key), Owner: owner, Mode: mode,
			Permits: uint64(mode) / 2 * 3, Wait: wait, Flags: flags, TTL: ms(20 * time.Second)})
	}
	for owner := range uint64(3) { // one holds, the others wait
		acquire("held", owner, protocol.Exclusive, protocol.WaitAlways, 0)
		acquire("permits", owner, protocol.Permit, 60000, 0)
		acquire("shared", owner, protocol.Shared, 60000, protocol.FlagFixed)
		d.answer()
	}
	for base := range uint64(3) { // the last release leaves the lease lingering
		acquire("o:lingers", 0, protocol.Exclusive, protocol.WaitAlways, 0)
		d.otherAnswers(cache.Result{Status: cache.Granted, Base: 5 + base})
		d.now.Add(int64(time.Millisecond))
		ask(protocol.Request{Op: protocol.OpRelease, Key: []byte("o:lingers"),
			Fence: d.granted(id).Fence})
		d.otherAnswers(cache.Result{Status: cache.Done})
	}
	renewed := d.acquire("renewed", 20*time.Second)
	released := d.acquire("released", 20*time.Second)
	quietly := d.acquire("quietly", 20*time.Second)

	// Requests that the stores have not answered.
	ask(protocol.Request{Op: protocol.OpRenew, Key: []byte("renewed"), Fence: renewed.Fence})
	ask(protocol.Request{Op: protocol.OpRelease, Key: []byte("released"), Fence: released.Fence})
	ask(protocol.Request{Op: protocol.OpRelease, Key: []byte("quietly"), Fence: quietly.Fence,
		Flags: protocol.FlagQuiet})
	ask(protocol.Request{Op: protocol.OpInspect, Key: []byte("inspected")})
	acquire("o:asked", 1, protocol.Exclusive, protocol.WaitAlways, 0)
	acquire("o:permits", 1, protocol.Permit, protocol.WaitAlways, 0)
	ask(protocol.Request{Op: protocol.OpAcquireMany, Owner: 7,
		Keys: [][]byte{[]byte("held"), []byte("o:many")},
		Wait: 60000, TTL: 20000})
	ask(protocol.Request{Op: protocol.OpCancel, Key: []byte("held"), Target: id})
	ask(protocol.Request{Op: protocol.OpAcquireAny, Owner: 7, // one is held, and the others are free
		Keys: [][]byte{[]byte("held"), []byte("o:any"), []byte("o:other")},
		Wait: 60000, TTL: 20000})
	d.e.StoreDown(d.other, errors.New("down"))
	d.s.peer.Groups, d.s.out = []int{7}, []byte("not written yet")
	return d
}

var richSpaces = []Namespace{{MaxHold: time.Hour},
	{Prefix: "o:", Store: "other", Linger: 2 * time.Second}}

// twin returns an engine that can take the snapshot of d.
func (d *twoStores) twin() *Engine {
	e := NewEngine(*d.e.settings(), d.now.Load, func(int64) {})
	_, err := e.AddStore("", d.u.info, nil)
	if err == nil {
		_, err = e.AddStore("other", upstream.Info{Rebase: true, Queue: true, Permits: true,
			Timeout: time.Second}, nil)
	}
	if err == nil {
		err = e.Route(richSpaces, nil)
	}
	if err != nil {
		d.Fatal(err)
	}
	return e
}
