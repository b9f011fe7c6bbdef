package zookeeper

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// Without a connection nothing can be removed. Then the oldest parents are forgotten.
func TestIdleParentsTakeBoundedMemory(t *testing.T) {
	ps := newIdleParents(defaultIdle)
	const many = 100_000
	for i := range many {
		ps.note(fmt.Sprint("/order:", i))
		ps.note("/again")
	}
	bytes := 0
	for e := ps.queue.Front(); e != nil; e = e.Next() {
		bytes += idleCost + len(e.Value.(*idleParent).path)
	}
	if ps.bytes > hardIdleBytes || ps.bytes != bytes || len(ps.byPath) != ps.queue.Len() ||
		ps.queue.Len() < hardIdleBytes/idleCost/2 {
		t.Errorf("%d and %d parents are remembered in %d bytes, counted as %d", len(ps.byPath),
			ps.queue.Len(), bytes, ps.bytes)
	}
	if ps.byPath["/again"] == nil || ps.byPath[fmt.Sprint("/order:", many-1)] == nil ||
		ps.byPath["/order:0"] != nil {
		t.Error("other parents than the oldest are forgotten")
	}
	// Parents above the limit are due at once, one round after the other. The rest is due later.
	left := ps.queue.Len()
	for ps.bytes > ps.limit {
		due, wait := ps.due()
		if len(due) == 0 || len(due) > roundRemovals || wait <= 0 {
			t.Fatalf("%d are due, and more in %v", len(due), wait)
		}
		left -= len(due)
	}
	if due, wait := ps.due(); len(due) != 0 || wait <= 0 || wait > idleTime || ps.queue.Len() != left {
		t.Errorf("%d are due, and more in %v; %d are left of %d", len(due), wait, ps.queue.Len(), left)
	}

	// A parent that is in use is tried a few times.
	ps = newIdleParents(defaultIdle)
	ps.after = 0
	ps.note("/used")
	for n := 0; ps.queue.Len() > 0; n++ {
		due, _ := ps.due()
		ps.again(due, false)
		if due, _ = ps.due(); len(due) != 1 || n >= removalTries {
			t.Fatalf("%d are due, after %d times", len(due), n)
		}
		ps.again(due, true)
	}
}

// A parent that others use or have removed meanwhile does not keep the rest of its transaction from
// being removed.
func TestParentsThatChangeBeforeTheyAreRemoved(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	cfg, err := Parse(srv.URL() + "?session=30s&timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	cfg.Clock = func() int64 { return int64(time.Since(start)) }
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	se, c := s.current(), srv.Admin()
	for _, path := range []string{"/empty", "/used", "/last"} {
		if err := se.makeContainer(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Create("/used/lock-", nil, zk.FlagEphemeralSequential,
		zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	errs := se.deleteParents(t.Context(), []*idleParent{{path: "/empty"}, {path: "/used"},
		{path: "/gone"}, {path: "/last"}})
	if !slices.Equal(errs, []error{nil, zk.ErrNotEmpty, errNoNode, nil}) {
		t.Errorf("the errors are %v", errs)
	}
	names, _, err := c.Children("/")
	if slices.Sort(names); err != nil || !slices.Equal(names,
		[]string{internalDir, "used", "zookeeper"}) {
		t.Errorf("there are %v (%v)", names, err)
	}
}
