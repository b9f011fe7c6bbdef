package mysql_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestConformanceOfClock(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDBWithClock(t, quickly)
	storetest.Clock(t, func(t testing.TB, prefix string) upstream.Store { return reach(t, srv, prefix) }, storetest.Options{}, srv.JumpClock)
}

func TestJumpingClockKeepsFencesRising(t *testing.T) {
	srv := testserver.StartMariaDBWithClock(t, quickly)
	p, q := newPeer(t, srv.URL()), newPeer(t, srv.URL())
	a, base := p.take("a", cache.Exclusive)
	next := func(r cache.Result) {
		t.Helper()
		q.want(r, cache.Granted)
		if r.Base <= base {
			t.Errorf("base %d after %d", r.Base, base)
		}
		base = r.Base
	}
	// Forward: leases end early, and the next holder has a larger fence.
	srv.JumpClock(time.Hour)
	b := q.token()
	next(q.do(cache.OpTry, cache.Exclusive, "a", b))
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.NotHeld)
	// Back: leases last longer, and are renewed and released as usual.
	srv.JumpClock(-2 * time.Hour)
	p.want(p.do(cache.OpTry, cache.Exclusive, "a", p.token()), cache.Busy)
	q.want(q.do(cache.OpRenew, cache.Exclusive, "a", b), cache.Done)
	res, _ := q.apply(upstream.Op{Kind: cache.OpRenew, Rebase: true, Key: "a", Token: b, TTL: long})
	q.want(res[0], cache.Done)
	if res[0].Base <= base {
		t.Errorf("a new base is %d after %d", res[0].Base, base)
	}
	base = res[0].Base
	q.want(q.do(cache.OpRelease, cache.Exclusive, "a", b), cache.Done)
	next(q.do(cache.OpTry, cache.Shared, "a", q.token()))
	q.want(q.do(cache.OpRelease, cache.Shared, "a", q.last), cache.Done)
	next(q.do(cache.OpTry, cache.Exclusive, "a", q.token()))
	// Back further than rows are kept: an existing row still counts.
	srv.JumpClock(-72 * time.Hour)
	q.want(q.do(cache.OpRelease, cache.Exclusive, "a", q.last), cache.Done)
	next(q.do(cache.OpTry, cache.Exclusive, "a", q.token()))
}

// A failover loses the last writes, and the new primary's clock is an hour behind. A daemon that
// was connected to the old primary gives larger fences, and so does its successor.
func TestFencesRiseOverAFailoverToAServerWhoseClockIsBehind(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDBWithClock(t, quickly)
	for _, op := range []upstream.Op{{Kind: cache.OpTry}, {Kind: cache.OpTry, Mode: cache.Shared},
		{Kind: cache.OpTry, Mode: cache.Permit, Limit: 1}} {
		srv.JumpClock(0)
		p, opened := newPeer(t, srv.URL()), time.Now()
		q := newPeer(t, srv.URL()) // it acquires nothing yet
		took := time.Since(opened) // its floor may be behind by as much
		take := func(h *peer) uint64 {
			t.Helper()
			op.Key, op.Token, op.TTL = "k", h.token(), long
			res, _ := h.apply(op)
			h.want(res[0], cache.Granted)
			return res[0].Base
		}
		last, granted := take(p), time.Now()
		lose := func() { srv.Exec("TRUNCATE locks.locksidecar; TRUNCATE locks.locksidecar_permits") }
		lose()
		srv.JumpClock(-time.Hour)
		for time.Since(granted) <= took {
			time.Sleep(time.Millisecond)
		}
		left, err := q.Capabilities().Mover.Leave()
		if err != nil {
			t.Fatal(err)
		}
		if base := take(q); base <= last {
			t.Errorf("%v: base %d after %d", op.Mode, base, last)
		}
		lose()
		successor := newPeer(t, srv.URL())
		begin, err := successor.Capabilities().Mover.Arrive(left)
		if err != nil {
			t.Fatal(err)
		}
		begin()
		if base := take(successor); base <= last {
			t.Errorf("%v: the successor's base is %d after %d", op.Mode, base, last)
		}
		lose()
	}
}
