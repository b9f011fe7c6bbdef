package etcd

import (
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/storetest"
)

func TestTheStateOfEtcdIsComplete(t *testing.T) {
	bare := func() *Store {
		s := &Store{names: names{root: "locks/"}, clock: func() int64 { return 100 },
			high: new(atomic.Int64), turn: make(chan struct{}, 1)}
		s.lockKeys.init()
		return s
	}
	s := bare()
	s.last.Store(3)
	s.granted.Store(4)
	s.high.Store(5)
	s.maxOps.Store(6)
	s.maxBytes.Store(7)
	n := &session{no: 3, lease: 8, key: "session", cluster: 9}
	n.until.Store(200)
	n.fence.Store(10)
	s.cur.Store(n)
	table := &s.lockKeys
	table.putLocked(&lockKey{lock: "held", token: 1, sess: n, mode: cache.Shared,
		held: true, since: 30,
		keyState: keyState{dir: "d", key: "d/1", rev: 20}})
	table.putLocked(&lockKey{lock: "queued", token: 2, sess: n, leaving: true,
		keyState: keyState{dir: "e", key: "e/2", rev: 21, pred: "e/1", predRev: 22, predMod: 23}})
	table.unresolved[acquireID{"doubted", 3, true}] = 24
	m := s.semLocked(n, "permits")
	m.limit, m.seen = 2, 3
	queued, free, held := m.addLocked(4), m.addLocked(5), m.addLocked(6)
	table.setHeldLocked(held, 25, 40)
	held.permit.limit = 2
	queued.rev, queued.permit.uncertain = 26, true
	table.setWaitingLocked(queued, "p", 27)
	table.forgetPermitLocked(free)
	storetest.Complete{Root: s, Snapshot: func() ([]byte, error) {
		defer s.Stay()
		return s.Leave()
	},
		Again: func(b []byte) ([]byte, error) {
			next := bare()
			if _, err := next.Arrive(b); err != nil {
				return nil, err
			}
			return next.Leave()
		},
		LeftOut: map[string]string{
			"etcd.names.root": "from the configuration", "etcd.Store.cfg": "from the configuration",
			"etcd.Store.log": "each process has its own", "etcd.Store.clock": "each process has its own",
			"etcd.Store.client":   "each process has its own connections",
			"etcd.Store.reason":   "why there is no session is found out again",
			"etcd.Store.kick":     "each process has its own",
			"etcd.Store.heldFor":  "a callback of the daemon",
			"etcd.Store.outgoing": "questions to other daemons are cut",
			"etcd.Store.incoming": "of other daemons, which ask again",
			"etcd.Store.hints":    "hints may be lost", "etcd.Store.sessions": "the deadline is told again",
			"etcd.Store.cancel": "each process has its own", "etcd.Store.wg": "each process has its own",
			"etcd.Store.turn": "each process has its own",

			"etcd.session.lost":  "a lost session is not in the state",
			"etcd.session.gone":  "only of a lost session",
			"etcd.session.fault": "only of a lost session",

			"etcd.lockKeys.byLock (keys)": "the lock's own name",
			"etcd.lockKeys.sems (keys)":   "the semaphore's own key",
			"etcd.lockKeys.recent":        "each is looked at anew",
			"etcd.lockKeys.longHeld":      "each is looked at anew",
			"etcd.lockKeys.next":          "each is looked at anew",
			"etcd.lockKeys.byWatch":       "watches are made anew",
			"etcd.lockKeys.lastWatch":     "watches are made anew",
			"etcd.lockKeys.create":        "watches are made anew",
			"etcd.lockKeys.cancel":        "watches are made anew",
			"etcd.lockKeys.check":         "watches are made anew",
			"etcd.lockKeys.question":      "watches are made anew",
			"etcd.lockKeys.questionOf":    "watches are made anew",
			"etcd.lockKeys.sending":       "each process has its own",
			"etcd.lockKeys.checking":      "each process has its own",

			"etcd.lockKey.gone": "none is in the table", "etcd.lockKey.longIndex": "an index",
			"etcd.lockKey.watch": "watches are made anew", "etcd.lockKey.watched": "watches are made anew",
			"etcd.lockKey.sess": "the session that goes on",

			"etcd.sem.sess": "the session that goes on",
			"etcd.sem.held": "of the key", "etcd.sem.queue": "of the key", "etcd.sem.own": "of the session",
			"etcd.sem.tokens": "of the slots", "etcd.sem.free": "of the slots",
			"etcd.sem.nHeld":    "of the slots",
			"etcd.sem.watchers": "watches are made anew",

			"etcd.permit.sem":      "the semaphore that has it",
			"etcd.permit.role":     "those in slots have the same",
			"etcd.permit.slot":     "an index",
			"etcd.permit.queueKey": "of the slot", "etcd.permit.value": "of the token",
			"etcd.permit.checked": "of watches, which are made anew",
			"etcd.permit.busy":    "no op is under way",
		},
	}.Check(t)
}
