package etcd_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestPermitAnswersThatNeverCome(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, w := wirePeer(t, srv, "timeout=2s&ttl=180s")
	q := newPeer(t, srv, "ttl=30s")
	for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
		for _, happens := range []bool{true, false} {
			// The store reads a semaphore before it takes the first permit, and a lost answer stops it
			// there. It takes further permits at once while there is room.
			first := p.takePermit(40, "a")
			w.lose(!happens, happens)
			x, y := p.token(), p.token()
			res, _ := p.apply(permitOp(kind, 40, "a", x), permitOp(kind, 40, "a", y))
			p.want(res[0], cache.Unknown)
			p.want(res[1], cache.Unknown)
			stands := 1
			if happens {
				stands = 3
			}
			if n := standing(t, srv, heldDir+"a/"); n != stands {
				t.Errorf("%d keys stand", n)
			}
			p.again(w)
			p.want(p.permit(cache.OpWithdraw, 0, "a", x), cache.Done)
			p.want(p.permit(kind, 40, "a", y), cache.Granted)
			p.want(p.permit(cache.OpRenew, 0, "a", y), cache.Done)
			if n := standing(t, srv, heldDir+"a/"); n != 2 {
				t.Errorf("%d keys stand", n)
			}
			// A release.
			w.lose(!happens, happens)
			p.want(p.permit(cache.OpRelease, 0, "a", y), cache.Unknown)
			p.again(w)
			want := cache.Done
			if happens {
				want = cache.NotHeld
			}
			p.want(p.permit(cache.OpRelease, 0, "a", y), want)
			p.want(p.permit(cache.OpRelease, 0, "a", first), cache.Done)
			if ks := keys(t, srv.Admin()); len(ks) != 0 {
				t.Errorf("left: %q", ks)
			}
		}
	}
	for _, happens := range []bool{true, false} { // a waiter that gets a permit
		held := q.takePermit(1, "b")
		x := p.token()
		p.want(p.permit(cache.OpJoin, 1, "b", x), cache.Queued)
		q.want(q.permit(cache.OpRelease, 0, "b", held), cache.Done)
		w.lose(!happens, happens)
		p.want(p.permit(cache.OpJoin, 1, "b", x), cache.Refused) // the store reads before it writes
		p.again(w)
		p.want(p.permit(cache.OpJoin, 1, "b", x), cache.Granted)
		q.want(q.permit(cache.OpTry, 1, "b", q.token()), cache.Busy)
		p.want(p.permit(cache.OpRelease, 0, "b", x), cache.Done)
	}
	if ks := keys(t, srv.Admin()); len(ks) != 0 {
		t.Errorf("left: %q", ks)
	}
}

func TestPermitsOnABadWire(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	const limit, key = 3, "k"
	type hand struct {
		at    int
		token uint64
	}
	var ps []*peer
	var ws []*wire
	for range 2 {
		p, w := wirePeer(t, srv, "timeout=250ms&ttl=60s")
		ps, ws = append(ps, p), append(ws, w)
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	held, open, bases := map[hand]bool{}, map[hand]bool{}, map[uint64]hand{}
	for range 80 {
		i := rnd.IntN(len(ps))
		p, w := ps[i], ws[i]
		var ops []upstream.Op
		for range 1 + rnd.IntN(3) {
			kind := []cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpJoin}[rnd.IntN(3)]
			ops = append(ops, permitOp(kind, limit, key, p.token()))
		}
		for h := range open {
			if h.at == i && rnd.IntN(2) == 0 {
				kind := []cache.OpKind{cache.OpJoin, cache.OpJoin, cache.OpTry, cache.OpRelease,
					cache.OpWithdraw, cache.OpWithdraw}[rnd.IntN(6)]
				if kind == cache.OpRelease || kind == cache.OpWithdraw {
					delete(held, h)
				}
				ops = append(ops, permitOp(kind, limit, key, h.token))
			}
		}
		bad := rnd.IntN(4) == 0
		begun := make(chan bool)
		if bad { // from some moment on, requests or answers are lost
			requests, after := rnd.IntN(2) == 0, time.Duration(rnd.IntN(3000))*time.Microsecond
			time.AfterFunc(after, func() { w.lose(requests, true); close(begun) })
		}
		res, _ := p.apply(ops...)
		for j, r := range res {
			h := hand{i, ops[j].Token}
			open[h] = true
			switch k := ops[j].Kind; {
			case r.Status == cache.Granted:
				if who, ok := bases[r.Base]; ok && who != h {
					t.Fatalf("base %d is of %v and %v", r.Base, who, h)
				}
				held[h], bases[r.Base] = true, h
			case r.Status == cache.Busy, r.Status == cache.Queued:
				if held[h] {
					t.Fatalf("%v has lost its permit: %v", h, r.Status)
				}
				if r.Status == cache.Busy {
					delete(open, h)
				}
			case (k == cache.OpRelease || k == cache.OpWithdraw) &&
				(r.Status == cache.Done || r.Status == cache.NotHeld):
				delete(open, h)
			case r.Status != cache.Unknown && r.Status != cache.Refused:
				t.Fatalf("%v is %v (%v)", k, r.Status, r.Err)
			}
		}
		if len(held) > limit {
			t.Fatalf("%d are held: %v", len(held), held)
		}
		if bad {
			<-begun
			p.again(w)
		}
	}
	for h := range open {
		p := ps[h.at]
		p.eventually("it is withdrawn", func() bool {
			return p.permit(cache.OpWithdraw, 0, key, h.token).Status == cache.Done
		})
	}
	if ks := keys(t, srv.Admin()); len(ks) != 0 {
		t.Errorf("left: %q", ks)
	}
}

func TestPermitsSurviveARestart(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, q := newPeer(t, srv, "ttl=20s"), newPeer(t, srv, "ttl=20s")
	a, b := p.takePermit(2, "k"), p.takePermit(2, "k")
	c := q.token()
	q.want(q.permit(cache.OpJoin, 2, "k", c), cache.Queued)
	srv.Kill()
	p.eventually("the server's absence is noticed", func() bool {
		return p.permit(cache.OpTry, 2, "k", p.token()).Status == cache.Refused
	})
	srv.Start()
	p.eventually("the server is back", func() bool {
		return p.Ping(t.Context()) == nil && q.Ping(t.Context()) == nil
	})
	for _, tok := range []uint64{a, b} {
		r := p.permit(cache.OpRenew, 0, "k", tok)
		p.want(r, cache.Done)
		if !r.Contended {
			t.Error("it is not contended any more")
		}
	}
	q.want(q.permit(cache.OpJoin, 2, "k", c), cache.Queued)
	p.want(p.permit(cache.OpRelease, 0, "k", a), cache.Done)
	q.hintedPermit(cache.HintAvailable, "k", c)
	q.want(q.permit(cache.OpJoin, 2, "k", c), cache.Granted)
	p.want(p.permit(cache.OpTry, 2, "k", p.token()), cache.Busy)
}

func TestPermitsGoWithTheSession(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "ttl=5s")
	a, b := p.takePermit(2, "k"), p.takePermit(2, "k")
	place := p.token()
	p.want(p.permit(cache.OpJoin, 2, "k", place), cache.Queued)
	leases, err := srv.Admin().Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Fatal(leases, err)
	}
	q := newPeer(t, srv, "ttl=5s")
	c := q.token()
	q.want(q.permit(cache.OpJoin, 2, "k", c), cache.Queued)
	if _, err := srv.Admin().Revoke(t.Context(), leases.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	q.hintedPermit(cache.HintAvailable, "k", c)
	q.want(q.permit(cache.OpJoin, 2, "k", c), cache.Granted)
	p.lost(1)
	p.session("the next", func(s upstream.Session) bool {
		return s.No == 2 && !s.Lost && s.Until != 0
	})
	p.want(p.permit(cache.OpRenew, 0, "k", a), cache.NotHeld)
	p.want(p.permit(cache.OpRelease, 0, "k", b), cache.NotHeld)
	p.want(p.permit(cache.OpWithdraw, 0, "k", place), cache.Done)
	if r := p.permit(cache.OpTry, 2, "k", p.token()); r.Status != cache.Granted || r.SessionNo != 2 {
		t.Errorf("it is %+v", r)
	}
}

func TestPermitRemovedByHand(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "ttl=30s")
	gone, kept := p.takePermit(2, "k"), p.takePermit(2, "k")
	place := p.token()
	p.want(p.permit(cache.OpJoin, 2, "k", place), cache.Queued)
	r, err := srv.Admin().Get(t.Context(), heldDir, clientv3.WithPrefix(), clientv3.WithLimit(1))
	if err != nil || len(r.Kvs) != 1 || !strings.HasSuffix(string(r.Kvs[0].Value),
		fmt.Sprintf(":%x", gone)) {
		t.Fatal(r, err)
	}
	if _, err := srv.Admin().Delete(t.Context(), string(r.Kvs[0].Key)); err != nil {
		t.Fatal(err)
	}
	p.hintedPermit(cache.HintGone, "k", gone)
	p.want(p.permit(cache.OpRenew, 0, "k", gone), cache.NotHeld)
	p.want(p.permit(cache.OpRenew, 0, "k", kept), cache.Done)
	p.want(p.permit(cache.OpJoin, 2, "k", place), cache.Granted)
	next := p.token()
	p.want(p.permit(cache.OpJoin, 2, "k", next), cache.Queued)
	if _, err := srv.Admin().Delete(t.Context(), queueDir, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	p.want(p.permit(cache.OpJoin, 2, "k", next), cache.Queued)
	p.want(p.permit(cache.OpRelease, 0, "k", kept), cache.Done)
	p.want(p.permit(cache.OpJoin, 2, "k", next), cache.Granted)
}

func TestFullDatabaseGivesNoPermits(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t, "--quota-backend-bytes=1000000")
	p := newPeer(t, srv, "timeout=10s&ttl=30s")
	a, b, c, place := p.takePermit(40, "k"), p.takePermit(40, "k"), p.takePermit(1, "one"), p.token()
	p.want(p.permit(cache.OpJoin, 1, "one", place), cache.Queued)
	fill(t, srv)
	res, err := p.apply(permitOp(cache.OpTry, 40, "k", p.token()),
		permitOp(cache.OpJoin, 40, "k", p.token()),
		permitOp(cache.OpJoin, 1, "new", p.token()), permitOp(cache.OpRelease, 0, "k", a))
	for _, r := range res[:3] {
		p.want(r, cache.Refused)
	}
	p.want(res[3], cache.Done)
	if err == nil || !strings.Contains(err.Error(), "quota-backend-bytes") {
		t.Errorf("the error is %v", err)
	}
	p.want(p.permit(cache.OpRenew, 0, "k", b), cache.Done)
	p.want(p.permit(cache.OpRelease, 0, "one", c), cache.Done)
	p.want(p.permit(cache.OpJoin, 1, "one", place), cache.Queued) // it keeps its place
	p.want(p.permit(cache.OpWithdraw, 0, "one", place), cache.Done)
	p.want(p.permit(cache.OpRelease, 0, "k", b), cache.Done)
	if ks := keys(t, srv.Admin()); len(ks) != 0 {
		t.Errorf("left: %q", ks)
	}
}
