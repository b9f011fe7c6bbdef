package redlock

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

func TestTheStateOfRedlockIsComplete(t *testing.T) {
	bare := func() *Store {
		return &Store{cfg: Config{URL: &storeurl.URL{Hosts: []string{"a", "b", "c"}}},
			leases: make(map[leaseID]*lease), instance: "us"}
	}
	s := bare()
	g := &lease{leaseID: leaseID{"k", 1}, number: 256, mode: cache.Shared, obsolete: true,
		reusable: true,
		mayHave:  7, granted: 1, lateAcquire: 2, exclusiveAt: 1, lateRelease: 4, until: 11,
		endsAt: 12, notBefore: 13}
	s.leases[g.leaseID] = g
	storetest.Complete{Root: s, Snapshot: s.Leave,
		Again: func(b []byte) ([]byte, error) {
			next := bare()
			if _, err := next.Arrive(b); err != nil {
				return nil, err
			}
			return next.Leave()
		},
		LeftOut: map[string]string{
			"redlock.Store.cfg":      "from the configuration; the state has the names of the nodes",
			"redlock.Store.log":      "each process has its own",
			"redlock.Store.clock":    "each process has its own",
			"redlock.Store.instance": "passed on by Identity",
			"redlock.Store.grace":    "constant", "redlock.Store.rand": "each process has its own",
			"redlock.Store.nodes":        "reached anew; what is on its way there counts as not answered, and pending releases are recorded again",
			"redlock.Store.ctx":          "each process has its own",
			"redlock.Store.cancel":       "each process has its own",
			"redlock.Store.wg":           "each process has its own",
			"redlock.Store.wakeup":       "each process has its own",
			"redlock.Store.releaserDone": "each process has its own",
			"redlock.Store.listing":      "of a view in progress",
			"redlock.Store.closed":       "a closed store is not passed on",
			"redlock.Store.idle":         "a closed store is not passed on",
			"redlock.lease.pendingAt":    "begin records the pending releases again",
			"redlock.lease.jobs":         "nothing is under way",
			"redlock.lease.calls":        "nothing is under way",
		},
	}.Check(t)
}
