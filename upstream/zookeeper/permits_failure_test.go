package zookeeper_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// These tests check the table in doc.go for permits.

func TestAnswersAboutPermitsThatNeverCome(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	proxy, url := proxied(t, srv)
	p, o := newPeer(t, url+"?session=40s&timeout=2s"), newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	mine, other := sem{p, "a", 3}, sem{o, "a", 3}
	keep, _ := mine.take(1) // another permit of the same host, which must not be affected
	for _, happens := range []bool{true, false} {
		// Two permits are requested at once. The same tokens get them in both cases.
		var a, b uint64
		lostAnswer(t, p, proxy, happens, func() cache.Result {
			a, b = p.token(), p.token()
			res, _ := p.apply(mine.op(cache.OpTry, a), mine.op(cache.OpTry, b))
			if res[0].Status != res[1].Status {
				t.Errorf("one is %v, one is %v", res[0].Status, res[1].Status)
			}
			return res[0]
		})
		bases := map[uint64]bool{}
		for _, tok := range []uint64{a, b} {
			var r cache.Result
			p.eventually("it is granted", func() bool { r = mine.do(cache.OpTry, tok); return r.Status == cache.Granted })
			bases[r.Base] = true
		}
		if len(bases) != 2 {
			t.Errorf("both have the same base")
		}
		o.want(other.do(cache.OpTry, o.token()), cache.Busy)
		lostAnswer(t, p, proxy, happens, func() cache.Result { return mine.do(cache.OpRelease, a) })
		p.eventually("it is released", func() bool {
			r := mine.do(cache.OpRelease, a)
			return r.Status == cache.Done || r.Status == cache.NotHeld
		})
		t1, _ := other.take(1)
		o.want(other.do(cache.OpTry, o.token()), cache.Busy)

		// A place in the queue.
		tok := p.token()
		lostAnswer(t, p, proxy, happens, func() cache.Result { return mine.do(cache.OpJoin, tok) })
		p.eventually("it is withdrawn", func() bool {
			return mine.do(cache.OpWithdraw, tok).Status == cache.Done
		})
		o.want(other.do(cache.OpRelease, t1[0]), cache.Done)
		p.eventually("the other is released too", func() bool {
			return mine.do(cache.OpRelease, b).Status == cache.Done
		})
		two, _ := other.take(2)
		o.want(other.do(cache.OpTry, o.token()), cache.Busy)
		for _, tok := range two {
			o.want(other.do(cache.OpRelease, tok), cache.Done)
		}
		p.eventually("what is not touched stays", func() bool {
			return mine.do(cache.OpRenew, keep[0]).Status == cache.Done
		})
	}
}

func TestOrphansOfPermitsComeBack(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	proxy, url := proxied(t, srv)
	p, o := newPeer(t, url+"?session=40s&timeout=2s"), newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	mine, other := sem{p, "a", 3}, sem{o, "a", 3}
	keep, _ := mine.take(1)
	kept := func(_ string, token uint64) bool { return token == keep[0] }
	// A busy server may drop the requests of a cut connection.
	p.eventually("acquires happen whose answers are lost", func() bool {
		lostAnswer(t, p, proxy, true, func() cache.Result {
			res, _ := p.apply(mine.op(cache.OpTry, p.token()), mine.op(cache.OpTry, p.token()))
			return res[0]
		})
		p.eventually("it is back", func() bool { return p.Ping(t.Context()) == nil })
		locks, _, err := o.List(t.Context(), "", "", 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(locks) == 3 {
			return true
		}
		_, _ = p.Sweep(t.Context(), kept)
		return false
	})
	o.want(other.do(cache.OpTry, o.token()), cache.Busy)
	removed := 0
	p.eventually("they are swept", func() bool {
		n, err := p.Sweep(t.Context(), kept)
		removed += n
		return err == nil && removed == 2
	})
	other.take(2)
	o.want(other.do(cache.OpTry, o.token()), cache.Busy)
	p.want(mine.answered(cache.OpRenew, keep[0]), cache.Done)
}

func TestPermitsOutliveARestart(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p, o := newPeer(t, srv.URL()+"?session=30s&timeout=10s"),
		newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	mine, other := sem{p, "a", 2}, sem{o, "a", 2}
	held, bases := mine.take(2)
	q := other.queue()
	srv.Kill()
	srv.Start()
	for i, tok := range held {
		p.eventually("it is renewed", func() bool {
			return mine.do(cache.OpRenew, tok).Status == cache.Done
		})
		if r := p.want(mine.do(cache.OpTry, tok), cache.Granted); r.Base != bases[i] {
			t.Errorf("its base is %d, it was %d", r.Base, bases[i])
		}
	}
	o.eventually("it waits as before", func() bool {
		return other.do(cache.OpJoin, q).Status == cache.Queued
	})
	p.want(mine.do(cache.OpRelease, held[1]), cache.Done)
	other.told(cache.HintAvailable, q)
	o.want(other.do(cache.OpJoin, q), cache.Granted)
}

func TestPermitsOfALostSessionComeBack(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	proxy, url := proxied(t, srv)
	p, o := newPeer(t, url+"?session=4s&timeout=1s"), newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	mine, other := sem{p, "a", 2}, sem{o, "a", 2}
	held, _ := mine.take(2)
	own := mine.queue()
	q := other.queue()
	first := p.want(mine.answered(cache.OpRenew, held[0]), cache.Done)
	proxy.BlackHole(faultproxy.Both, true)
	other.told(cache.HintAvailable, q)
	o.want(other.do(cache.OpJoin, q), cache.Granted)
	if now := clock(); now < first.Session {
		t.Errorf("another has it %v before the deadline", time.Duration(first.Session-now))
	}
	p.lost(first.SessionNo)
	if err := proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	p.eventually("there is a new session", func() bool { return p.Ping(t.Context()) == nil })
	for _, tok := range held {
		p.want(mine.answered(cache.OpRenew, tok), cache.NotHeld)
		p.want(mine.answered(cache.OpRelease, tok), cache.NotHeld)
	}
	r := p.want(mine.answered(cache.OpJoin, own), cache.Granted) // one permit is free
	if r.SessionNo <= first.SessionNo {
		t.Errorf("session %d after %d", r.SessionNo, first.SessionNo)
	}
	again := p.token()
	p.want(mine.answered(cache.OpTry, again), cache.Busy)
}

func TestWaitingPermitsAreToldAfterACut(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	proxy, url := proxied(t, srv)
	p, o := newPeer(t, url+"?session=30s&timeout=5s"), newPeer(t, srv.URL())
	mine, other := sem{p, "a", 1}, sem{o, "a", 1}
	held, _ := other.take(1)
	first, second := other.queue(), mine.queue()
	for range 3 {
		proxy.Cut()
		p.eventually("it is back", func() bool { return p.Ping(t.Context()) == nil })
	}
	o.want(other.do(cache.OpRelease, held[0]), cache.Done)
	other.told(cache.HintAvailable, first)
	o.want(other.do(cache.OpJoin, first), cache.Granted)
	o.want(other.do(cache.OpRelease, first), cache.Done)
	mine.told(cache.HintAvailable, second)
	p.want(mine.do(cache.OpJoin, second), cache.Granted)
}

func TestADeletedPermitIsLostAlone(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p, o := newPeer(t, srv.URL()), newPeer(t, srv.URL())
	mine, other := sem{p, "a", 2}, sem{o, "a", 2}
	held, _ := mine.take(1)
	more, _ := mine.take(1)
	q := other.queue()
	del(t, srv.Admin(), mine.path(), 0)
	mine.told(cache.HintGone, held[0])
	p.want(mine.do(cache.OpRenew, held[0]), cache.NotHeld)
	p.want(mine.do(cache.OpRenew, more[0]), cache.Done)
	other.told(cache.HintAvailable, q)
	o.want(other.do(cache.OpJoin, q), cache.Granted)
	p.want(mine.do(cache.OpRelease, held[0]), cache.NotHeld)

	// A deleted place is made again, at the end of the queue.
	a, b := mine.queue(), other.queue()
	del(t, srv.Admin(), mine.path(), 2)
	mine.told(cache.HintAvailable, a)
	if st := mine.do(cache.OpJoin, a).Status; st != cache.Refused {
		p.Fatalf("it is %v", st)
	}
	p.want(mine.do(cache.OpJoin, a), cache.Queued)
	p.want(mine.do(cache.OpRelease, more[0]), cache.Done)
	other.told(cache.HintAvailable, b)
	o.want(other.do(cache.OpJoin, b), cache.Granted)
}
