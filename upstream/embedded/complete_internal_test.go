package embedded

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/upstream/storetest"
)

func TestTheStateOfAnEmbeddedStoreIsComplete(t *testing.T) {
	seed := newSuccessor(t).seed // the state lists keys in the order of the shards
	s := newSuccessor(t)
	s.seed = seed
	n := &s.session
	n.grace, n.graceTTL = 11, 12
	n.held.Store(3)
	n.until.Store(13)
	n.limit.Store(14)
	n.base.Store(15)
	n.no.Store(16)
	d := s.shard("k")
	d.held["k"], d.queued = 5, map[string]uint64{"k": 6}
	d.permits = map[string]*permits{"k": {held: map[uint64]struct{}{7: {}}, queued: []uint64{8, 9}}}
	d.kept = map[keptID]int64{{"k", 5, false}: 17}
	d.left = map[string][]leftLease{"k": {{1, 18}}}
	n.dirty.Store(true)
	image := func(s *Store) ([]byte, error) {
		defer s.Stay()
		return s.Leave()
	}
	storetest.Complete{Root: s,
		Snapshot: func() ([]byte, error) { return image(s) },
		Again: func(b []byte) ([]byte, error) {
			next := newSuccessor(t)
			next.seed = seed
			if _, err := next.Arrive(b); err != nil {
				return nil, err
			}
			if d := next.shard("k"); len(d.held) == 0 || len(d.queued) == 0 || d.permits["k"] == nil ||
				d.kept[keptID{"k", 5, false}] == 0 && d.kept[keptID{"k", 6, false}] == 0 &&
					d.kept[keptID{"k", 5, true}] == 0 || len(d.left["k"]) == 0 {
				return nil, errors.New("the check has changed a key, which belongs to another shard now")
			}
			return image(next)
		},
		LeftOut: map[string]string{
			"embedded.Store.seed":      "each process has its own",
			"embedded.Store.hints":     "hints may be lost",
			"embedded.Store.stopped":   "each process has its own",
			"embedded.Store.successor": "of a store that has not begun",
			"embedded.session.path":    "from the configuration", "embedded.session.boot": "of the machine",
			"embedded.session.ttl":       "from the configuration",
			"embedded.session.clock":     "each process has its own",
			"embedded.session.wall":      "each process has its own",
			"embedded.session.log":       "each process has its own",
			"embedded.session.failing":   "logged once more",
			"embedded.session.deadlines": "the deadline is sent again",
			"embedded.session.kick":      "each process has its own",
			"embedded.session.stop":      "each process has its own",
			"embedded.session.kept":      "each process has its own",
		},
	}.Check(t)
}

func newSuccessor(t *testing.T) *Store {
	t.Helper()
	s, err := Open(Options{Clock: func() int64 { return int64(time.Hour) }, Boot: "boot",
		Successor: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
