package etcd_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// leader returns the index of the leader.
func leader(t *testing.T, members []*testserver.Etcd) int {
	t.Helper()
	i := -1
	eventually(t, "there is a leader", func() bool {
		i = slices.IndexFunc(members, func(m *testserver.Etcd) bool { return m.IsLeader() })
		return i >= 0
	})
	return i
}

func TestThreeMembers(t *testing.T) {
	t.Parallel()
	members := testserver.StartEtcdCluster(t, 3)
	p := &peer{TB: t, Store: openConfig(t, config(t, "timeout=2s&ttl=20s", members...))}
	q := &peer{TB: t, Store: openConfig(t, config(t, "timeout=2s&ttl=20s", members...))}
	a, base := p.take("a", cache.Exclusive)
	waits := q.token()
	q.want(q.do(cache.OpJoin, cache.Exclusive, "a", waits), cache.Queued)
	held := func(what string) {
		t.Helper()
		p.eventually(what, func() bool {
			r := p.do(cache.OpRenew, cache.Exclusive, "a", a)
			if r.Status == cache.NotHeld || r.Status == cache.Done && r.SessionNo != 1 {
				t.Fatalf("%s: the lease is %v in session %d", what, r.Status, r.SessionNo)
			}
			return r.Status == cache.Done
		})
	}

	// A change of the leader loses nothing, whether it is planned or the old leader dies.
	l := leader(t, members)
	if _, err := members[l].Admin().MoveLeader(t.Context(),
		memberID(t, members[(l+1)%3])); err != nil {
		t.Fatal(err)
	}
	held("with a leader that was appointed")
	l = leader(t, members)
	members[l].Kill()
	held("without the leader")
	tok, _ := p.comes(cache.OpTry, "b")
	p.released("b", tok)

	// Without a majority nothing is granted, and the store reports that it is down.
	second := (l + 1) % 3
	members[second].Kill()
	p.eventually("it is noticed that there is no majority", func() bool {
		res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: "c", Token: p.token(), TTL: long})
		if res[0].Status == cache.Granted {
			t.Fatal("granted without a majority")
		}
		return errors.Is(err, upstream.ErrDown) && (res[0].Status == cache.Unknown ||
			res[0].Status == cache.Refused)
	})
	if err := p.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) {
		t.Errorf("the ping says %v", err)
	}

	// Once the majority is back within the TTL of the new leader, all leases continue.
	members[second].Start()
	held("with a majority again")
	members[l].Start()
	p.released("a", a)
	var r cache.Result
	q.eventually("the next in the queue has it", func() bool {
		r = q.do(cache.OpJoin, cache.Exclusive, "a", waits)
		return r.Status == cache.Granted
	})
	if r.Base <= base || r.SessionNo != 1 {
		t.Errorf("base %d after %d, in session %d", r.Base, base, r.SessionNo)
	}
}

func memberID(t *testing.T, m *testserver.Etcd) uint64 {
	t.Helper()
	r, err := m.Admin().Status(t.Context(), m.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.MemberId
}

// A paused member keeps its connections. Requests to it get no answer, and the other members
// continue.
func TestOneOfThreeMembersPaused(t *testing.T) {
	t.Parallel()
	members := testserver.StartEtcdCluster(t, 3)
	p := &peer{TB: t, Store: openConfig(t, config(t, "timeout=1s&ttl=10s", members...))}
	a, _ := p.take("a", cache.Exclusive)
	members[leader(t, members)].Pause()
	for i := range 3 {
		p.eventually("another key is granted", func() bool {
			tok := p.token()
			if p.do(cache.OpTry, cache.Exclusive, "b", tok).Status == cache.Granted {
				p.released("b", tok)
				return true
			}
			p.eventually("the unresolved request is withdrawn", func() bool {
				return p.do(cache.OpWithdraw, cache.Exclusive, "b", tok).Status == cache.Done
			})
			return false
		})
		r := p.do(cache.OpRenew, cache.Exclusive, "a", a)
		if r.Status == cache.NotHeld {
			t.Fatalf("lost in turn %d", i)
		}
	}
	p.eventually("the lease stands", func() bool {
		r := p.do(cache.OpRenew, cache.Exclusive, "a", a)
		if r.Status == cache.NotHeld {
			t.Fatal("lost")
		}
		return r.Status == cache.Done
	})
}
