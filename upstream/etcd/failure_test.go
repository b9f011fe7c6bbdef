package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// These tests check the table in doc.go.

func TestRestartWithItsDataKeepsTheSession(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "ttl=20s")
	a, base := p.take("a", cache.Exclusive)
	b, _ := p.take("b", cache.Shared)
	srv.Kill()
	p.eventually("the server's absence is noticed", func() bool {
		res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: "c", Token: p.token(), TTL: long})
		if st := res[0].Status; st != cache.Refused && st != cache.Unknown ||
			!errors.Is(err, upstream.ErrDown) {
			t.Fatalf("without a server it is %v, %v", st, err)
		}
		return res[0].Status == cache.Refused
	})
	if err := p.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) ||
		!strings.Contains(err.Error(), srv.Addr()) {
		t.Errorf("the ping says %v", err)
	}
	srv.Start()
	p.eventually("the server is back", func() bool { return p.Ping(t.Context()) == nil })
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.Done)
	r := p.do(cache.OpRenew, cache.Shared, "b", b)
	p.want(r, cache.Done)
	if r.SessionNo != 1 {
		t.Errorf("it is session %d", r.SessionNo)
	}
	p.want(p.do(cache.OpRelease, cache.Exclusive, "a", a), cache.Done)
	if _, next := p.take("a", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

func TestRestartWithoutItsDataLosesTheSessionAndFencesDoNotFall(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "ttl=5s")
	for range 5 {
		tok, _ := p.take("a", cache.Exclusive)
		p.want(p.do(cache.OpRelease, cache.Exclusive, "a", tok), cache.Done)
	}
	a, _ := p.take("a", cache.Exclusive)
	srv.Kill()
	srv.Wipe()
	srv.Start()
	p.lost(1)
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.NotHeld)
	p.eventually("the reason is told", func() bool {
		r := p.do(cache.OpTry, cache.Exclusive, "a", p.token())
		p.want(r, cache.Refused)
		return strings.Contains(r.Err.Error(), "fence_epoch")
	})
	p.eventually("its lease is known to be gone", func() bool {
		return p.do(cache.OpRelease, cache.Exclusive, "a", a).Status == cache.NotHeld
	})
	newPeer(t, srv, "").take("a", cache.Exclusive) // a store that has not seen the lost data continues
}

// The session survives, because the older copy has it. But the leases granted since the copy are
// gone, and the revisions begin again at its revision.
func TestAnOlderCopyLosesTheSessionAndFencesDoNotFall(t *testing.T) {
	t.Parallel()
	for _, rewritten := range []bool{false, true} {
		t.Run(fmt.Sprint("rewritten=", rewritten), func(t *testing.T) {
			t.Parallel()
			srv := testserver.StartEtcd(t)
			p := newPeer(t, srv, "ttl=60s")
			srv.Kill()
			restore := srv.Backup()
			srv.Start()
			p.eventually("the server is back", func() bool { return p.Ping(t.Context()) == nil })
			if rewritten {
				if _, err := srv.Admin().Delete(t.Context(), dir+"%session/",
					clientv3.WithPrefix()); err != nil {
					t.Fatal(err)
				}
			}
			held, _ := p.comes(cache.OpTry, "held")
			_, base := p.comes(cache.OpTry, "a")
			srv.Kill()
			restore()
			srv.Start()
			p.eventually("the loss is told", func() bool {
				res, err := p.apply(
					upstream.Op{Kind: cache.OpTry, Key: "b", Token: p.token(), TTL: long},
					upstream.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: 1, Key: "b",
						Token: p.token(), TTL: long})
				for _, r := range res {
					if r.Status != cache.Unknown && r.Status != cache.Refused {
						t.Fatalf("it is %v with base %d; the last base was %d", r.Status, r.Base, base)
					}
				}
				return errors.Is(err, upstream.ErrDown) && errors.Is(err, etcd.ErrServer) &&
					strings.Contains(err.Error(), "fence_epoch")
			})
			p.lost(1)
			p.want(p.do(cache.OpRenew, cache.Exclusive, "held", held), cache.NotHeld)
			if err := p.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) {
				t.Errorf("the ping says %v", err)
			}
		})
	}
}

func TestRevokedLeaseIsALostSession(t *testing.T) {
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "ttl=5s")
	a, base := p.take("a", cache.Exclusive)
	q, _ := p.take("q", cache.Shared)
	leases, err := srv.Admin().Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Fatal(leases, err)
	}
	if _, err := srv.Admin().Revoke(t.Context(), leases.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	// Nothing is granted under the session, although the store has not noticed its end yet.
	p.want(p.do(cache.OpTry, cache.Exclusive, "b", p.token()), cache.Refused)
	p.lost(1)
	p.session("the next", func(s upstream.Session) bool {
		return s.No == 2 && !s.Lost && s.Until != 0
	})
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.NotHeld)
	p.want(p.do(cache.OpDowngrade, cache.Exclusive, "q", q), cache.NotHeld)
	p.want(p.do(cache.OpRelease, cache.Shared, "q", q), cache.NotHeld)
	p.want(p.do(cache.OpWithdraw, cache.Exclusive, "a", a), cache.Done)
	r := p.do(cache.OpTry, cache.Exclusive, "a", p.token())
	p.want(r, cache.Granted)
	if r.Base <= base || r.SessionNo != 2 {
		t.Errorf("base %d after %d, session %d", r.Base, base, r.SessionNo)
	}
}

func TestPausedServerIsUnknownThenSettled(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, q := newPeer(t, srv, "timeout=2s&ttl=30s"), newPeer(t, srv, "ttl=30s")
	held, _ := p.take("held", cache.Exclusive)
	srv.Pause()
	p.eventually("the server has stopped", func() bool {
		return p.do(cache.OpPeek, 0, "a", 0).Status != cache.Done
	})
	asked := p.token()
	res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: "a", Token: asked, TTL: long},
		upstream.Op{Kind: cache.OpRelease, Key: "x", Token: asked})
	p.want(res[0], cache.Unknown)
	p.want(res[1], cache.Unknown)
	if !errors.Is(err, upstream.ErrDown) || !strings.Contains(res[0].Err.Error(), srv.Addr()) {
		t.Errorf("the errors are %v and %v", err, res[0].Err)
	}
	if err := p.Ping(t.Context()); err == nil {
		t.Error("the ping is answered")
	}
	srv.Resume()
	p.eventually("the unresolved request is withdrawn", func() bool {
		return p.do(cache.OpWithdraw, cache.Exclusive, "a", asked).Status == cache.Done
	})
	// Once that is confirmed, no late request succeeds.
	q.take("a", cache.Exclusive)
	p.eventually("the lease is renewed", func() bool {
		return p.do(cache.OpRenew, cache.Exclusive, "held", held).Status == cache.Done
	})
}

func TestPauseBeyondTheTTLLosesTheSessionInTime(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "timeout=3s&ttl=10s")
	a, base := p.take("a", cache.Exclusive)
	srv.Pause()
	p.lost(1)
	r := p.do(cache.OpTry, cache.Exclusive, "b", p.token())
	p.want(r, cache.Refused)
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.NotHeld)
	srv.Resume()
	tok, next := p.comes(cache.OpTry, "a")
	if next <= base {
		t.Errorf("base %d after %d", next, base)
	}
	p.want(p.do(cache.OpRelease, cache.Exclusive, "a", a), cache.NotHeld)
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", tok), cache.Done)
}

func TestOwnKeyRemovedBySomebodyIsNoticed(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "ttl=30s")
	tok, _ := p.take("a", cache.Exclusive)
	shared, _ := p.take("b", cache.Shared)
	for _, k := range []string{"a", "b"} {
		if _, err := srv.Admin().Delete(t.Context(), dir+k+"/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		p.hinted(cache.HintGone, k)
	}
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", tok), cache.NotHeld)
	p.want(p.do(cache.OpDowngrade, cache.Shared, "b", shared), cache.NotHeld)
	p.want(p.do(cache.OpRelease, cache.Shared, "b", shared), cache.NotHeld)

	// A place in the queue that was removed is taken again.
	q := newPeer(t, srv, "")
	held, _ := q.take("c", cache.Exclusive)
	waits := p.token()
	p.want(p.do(cache.OpJoin, cache.Exclusive, "c", waits), cache.Queued)
	for _, k := range keys(t, srv.Admin()) {
		if strings.HasSuffix(k, "-"+"3") {
			if _, err := srv.Admin().Delete(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.want(p.do(cache.OpJoin, cache.Exclusive, "c", waits), cache.Queued)
	if r := q.do(cache.OpRenew, cache.Exclusive, "c", held); !r.Contended {
		t.Error("its place is not there again")
	}
	q.want(q.do(cache.OpRelease, cache.Exclusive, "c", held), cache.Done)
	p.hinted(cache.HintAvailable, "c")
	p.want(p.do(cache.OpJoin, cache.Exclusive, "c", waits), cache.Granted)
}

func TestOwnReleaseIsNotTakenForALoss(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "")
	tok, _ := p.take("a", cache.Exclusive)
	q.want(q.do(cache.OpJoin, cache.Exclusive, "a", q.token()), cache.Queued)
	p.hinted(cache.HintContended, "a") // its watch exists
	p.want(p.do(cache.OpRelease, cache.Exclusive, "a", tok), cache.Done)
	p.take("b", cache.Exclusive)
	q.want(q.do(cache.OpJoin, cache.Exclusive, "b", q.token()), cache.Queued)
	for {
		switch h := <-p.Hints(); {
		case h.Kind == cache.HintGone:
			t.Fatalf("%s is said to be lost", h.Key)
		case h.Key == "b":
			return
		}
	}
}

func TestSessionKeyRemovedBySomebodyComesBack(t *testing.T) {
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "")
	a, _ := p.take("a", cache.Exclusive)
	if _, err := srv.Admin().Delete(t.Context(), dir+"%session/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	res, _ := p.apply(upstream.Op{Kind: cache.OpTry, Key: "b", Token: p.token(), TTL: long},
		upstream.Op{Kind: cache.OpRelease, Key: "a", Token: a})
	p.want(res[0], cache.Refused)
	p.want(res[1], cache.Done)
	p.comes(cache.OpTry, "a")
	if r := p.do(cache.OpTry, cache.Exclusive, "c", p.token()); r.SessionNo != 1 {
		t.Errorf("it is session %d (%v, %v)", r.SessionNo, r.Status, r.Err)
	}
}

func TestCompactionIsNotNoticed(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "")
	tok, _ := p.take("a", cache.Exclusive)
	waits := q.token()
	q.want(q.do(cache.OpJoin, cache.Exclusive, "a", waits), cache.Queued)
	r, err := srv.Admin().Put(t.Context(), "x", "y")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Admin().Compact(t.Context(), r.Header.Revision,
		clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	p.hinted(cache.HintContended, "a")
	srv.Restart() // the history that the old watches saw is compacted
	p.released("a", tok)
	q.hinted(cache.HintAvailable, "a")
	q.eventually("the key is granted", func() bool {
		return q.do(cache.OpJoin, cache.Exclusive, "a", waits).Status == cache.Granted
	})
}

func TestLazyStoreWaitsForItsServer(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	srv.Kill()
	p := lazyPeer(t, config(t, "timeout=500ms", srv))
	for range 5 {
		res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: "a", Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpRelease, Key: "b", Token: 7},
			upstream.Op{Kind: cache.OpPeek, Key: "c"})
		p.want(res[0], cache.Refused)
		p.want(res[1], cache.NotHeld) // no token was granted
		p.want(res[2], cache.Refused)
		if !errors.Is(err, upstream.ErrDown) {
			t.Fatalf("the error is %v", err)
		}
	}
	p.eventually("the reason is told", func() bool {
		r := p.do(cache.OpTry, cache.Exclusive, "a", p.token())
		return strings.Contains(r.Err.Error(), "refused") && strings.Contains(r.Err.Error(), srv.Addr())
	})
	srv.Start()
	p.comes(cache.OpTry, "a")
}

func TestQuickEndGivesAnEmptySessionBack(t *testing.T) {
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "")
	other, err := etcd.Open(t.Context(), config(t, "", srv))
	if err != nil {
		t.Fatal(err)
	}
	tok, _ := p.take("a", cache.Exclusive)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := srv.Admin().Leases(t.Context())
	if err != nil || len(r.Leases) != 1 {
		t.Errorf("there are %d leases (%v)", len(r.Leases), err)
	}
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", tok), cache.Done)
}

// fill writes until the server's database is full, which the server notices with some delay.
func fill(t *testing.T, srv *testserver.Etcd) {
	t.Helper()
	filler := strings.Repeat("x", 100_000)
	eventually(t, "the database is full", func() bool {
		_, err := srv.Admin().Put(t.Context(), "filler", filler)
		return err != nil
	})
}

func TestFullDatabaseTakesNothingAndReleases(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t, "--quota-backend-bytes=1000000")
	p := newPeer(t, srv, "timeout=10s&ttl=30s")
	a, _ := p.take("a", cache.Exclusive)
	b, _ := p.take("b", cache.Exclusive)
	fill(t, srv)
	res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: "c", Token: p.token(), TTL: long},
		upstream.Op{Kind: cache.OpRelease, Key: "a", Token: a})
	p.want(res[0], cache.Refused)
	p.want(res[1], cache.Done)
	if errors.Is(err, upstream.ErrDown) || !strings.Contains(err.Error(), "quota-backend-bytes") {
		t.Errorf("the error is %v", err)
	}
	p.want(p.do(cache.OpRenew, cache.Exclusive, "b", b), cache.Done)
	p.want(p.do(cache.OpRelease, cache.Exclusive, "b", b), cache.Done)
	if err := p.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) ||
		!strings.Contains(err.Error(), "NOSPACE") {
		t.Errorf("the ping says %v", err)
	}
	if ks := keys(t, srv.Admin()); len(ks) != 0 {
		t.Errorf("left: %q", ks)
	}
}
