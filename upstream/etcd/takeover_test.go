package etcd_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A process that another one has replaced can be stopped before it exits. When it continues, its
// session looks lost to it. It must not end the session: the other process keeps that alive, and
// has granted locks under it.
func TestAStoreThatIsTakenOverDoesNotEndItsSession(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	var slept atomic.Int64
	begun := time.Now()
	cfg := config(t, "ttl=3s", srv)
	cfg.Clock = func() int64 { return int64(time.Since(begun)) + slept.Load() + 1 }
	old := &peer{TB: t, Store: openConfig(t, cfg)}
	held, _ := old.take("held", cache.Exclusive)
	state, err := old.Leave()
	if err != nil {
		t.Fatal(err)
	}

	cfg = config(t, "ttl=3s", srv)
	cfg.Clock = func() int64 { return int64(time.Since(begun)) + 1 }
	s, err := etcd.OpenSuccessor(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
	successor := &peer{TB: t, Store: s, last: old.last}
	begin, err := s.Arrive(state)
	if err != nil {
		t.Fatal(err)
	}
	begin()

	slept.Add(int64(time.Hour))
	_ = old.Ping(t.Context()) // it looks at the clock
	for last, n := int64(0), 0; n < 3; {
		news := successor.session("renewed", func(upstream.Session) bool { return true })
		if news.Lost {
			t.Fatal("the session is lost")
		}
		if news.Until > last {
			last = news.Until
			n++
		}
	}
	successor.want(successor.do(cache.OpRenew, cache.Exclusive, "held", held), cache.Done)

	// If the takeover fails after all, the process that continues has lost the session.
	old.Stay()
	old.lost(1)
}

// An answer can show that the cluster has lost data when no news of the store is read any more,
// because a takeover has begun.
func TestALossThatNobodyHasReadIsToldByTheSuccessor(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	cfg := config(t, "", srv)
	cfg.Highest = new(atomic.Int64)
	old := &peer{TB: t, Store: openConfig(t, cfg)}
	old.take("held", cache.Exclusive)
	cfg.Highest.Add(1000)
	old.want(old.do(cache.OpTry, cache.Exclusive, "other", old.token()), cache.Unknown)
	state, err := old.Leave()
	if err != nil {
		t.Fatal(err)
	}
	s, err := etcd.OpenSuccessor(t.Context(), config(t, "", srv))
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
	begin, err := s.Arrive(state)
	if err != nil {
		t.Fatal(err)
	}
	begin()
	(&peer{TB: t, Store: s}).lost(1)
	old.Stay()
}
