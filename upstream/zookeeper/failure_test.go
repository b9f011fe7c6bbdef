package zookeeper_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

// These tests check the table in doc.go.

func proxied(t testing.TB, srv *testserver.ZooKeeper) (*faultproxy.Proxy, string) {
	t.Helper()
	p, err := faultproxy.TCP(srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, "zookeeper://" + p.Addr()
}

func TestRestartKeepsTheSessionAndItsLeases(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	a, base := p.take("a", cache.Exclusive)
	b, _ := p.take("b", cache.Shared)
	no := p.want(p.renew("a", a), cache.Done).SessionNo
	srv.Kill()
	p.eventually("the server's absence is noticed", func() bool {
		res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: "c", Token: p.token(), TTL: long})
		if res[0].Status != cache.Refused && res[0].Status != cache.Unknown ||
			!errors.Is(err, upstream.ErrDown) {
			t.Fatalf("without a server it is %v (%v)", res[0].Status, err)
		}
		return res[0].Status == cache.Refused
	})
	if err := p.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) {
		t.Errorf("a ping says %v", err)
	}
	srv.Start()
	p.eventually("the lease is renewed", func() bool { return p.renew("a", a).Status == cache.Done })
	r := p.want(p.renew("b", b), cache.Done)
	if r.SessionNo != no {
		t.Errorf("it is session %d after %d", r.SessionNo, no)
	}
	p.want(p.try("a", a), cache.Granted)
	p.want(p.release("a", a), cache.Done)
	if _, next := p.take("a", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
	p.want(p.release("b", b), cache.Done)
}

func TestPausedServerIsUnknownThenSettled(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"?session=40s&timeout=2s")
	held, _ := p.take("held", cache.Exclusive)
	p.used("a")
	asked := p.token()
	p.eventually("it is asked and not answered", func() bool {
		p.eventually("it is there", func() bool { return p.Ping(t.Context()) == nil })
		srv.Pause()
		r := p.try("a", asked)
		if r.Status == cache.Refused {
			srv.Resume()
			return false
		}
		p.want(r, cache.Unknown)
		return true
	})
	p.eventually("nothing more is sent", func() bool {
		return p.try("b", p.token()).Status == cache.Refused
	})
	srv.Resume()
	// The request may have been carried out. A withdrawal is Done once that is known.
	p.eventually("the unresolved request is withdrawn", func() bool {
		return p.do(cache.OpWithdraw, cache.Exclusive, "a", asked).Status == cache.Done
	})
	p.want(p.answered(func() cache.Result { return p.do(cache.OpPeek, 0, "a", 0) }), cache.Done)
	p.eventually("the lease is renewed", func() bool {
		return p.renew("held", held).Status == cache.Done
	})
	p.take("a", cache.Exclusive)
}

// used makes the node of a lock. Without it, an acquire makes the node first, and would be Refused
// if that is not answered.
func (p *peer) used(key string) {
	p.Helper()
	tok, _ := p.take(key, cache.Exclusive)
	p.released(key, tok)
}

// released repeats a release until it is answered. A release without an answer may have been
// carried out.
func (p *peer) released(key string, token uint64) {
	p.Helper()
	p.eventually("it is released", func() bool {
		r := p.release(key, token)
		return r.Status == cache.Done || r.Status == cache.NotHeld
	})
}

// lostAnswer loses the answer of one op, which the server carries out if happens is true.
func lostAnswer(t *testing.T, p *peer, proxy *faultproxy.Proxy, happens bool,
	op func() cache.Result) {
	t.Helper()
	dir := faultproxy.ToServer
	if happens {
		dir = faultproxy.ToClient
	}
	p.eventually("its answer is lost", func() bool {
		p.eventually("it is there", func() bool { return p.Ping(t.Context()) == nil })
		proxy.BlackHole(dir, true)
		r := op()
		proxy.BlackHole(dir, false)
		proxy.Cut()
		if r.Status == cache.Refused { // an answer was overdue already, so nothing was sent
			return false
		}
		p.want(r, cache.Unknown)
		return true
	})
}

func TestAnswersThatNeverCome(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	proxy, url := proxied(t, srv)
	p, other := newPeer(t, url+"?session=40s&timeout=2s"),
		newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	p.used("a")
	for _, happens := range []bool{true, false} {
		tok := p.token()
		lostAnswer(t, p, proxy, happens, func() cache.Result { return p.try("a", tok) })
		r := p.soon(cache.OpTry, "a", tok) // the same token gets it in both cases
		other.want(other.try("a", other.token()), cache.Busy)
		lostAnswer(t, p, proxy, happens, func() cache.Result { return p.release("a", tok) })
		p.released("a", tok)
		o := other.token()
		if next := other.soon(cache.OpTry, "a", o); next.Base <= r.Base {
			t.Errorf("base %d after %d", next.Base, r.Base)
		}
		other.want(other.release("a", o), cache.Done)

		tok = p.token()
		lostAnswer(t, p, proxy, happens, func() cache.Result { return p.join("a", tok) })
		p.eventually("it is withdrawn", func() bool {
			return p.do(cache.OpWithdraw, 0, "a", tok).Status == cache.Done
		})
		other.want(other.do(cache.OpPeek, 0, "a", 0), cache.Done)

		tok = p.token()
		p.soon(cache.OpTry, "a", tok)
		lostAnswer(t, p, proxy, happens, func() cache.Result {
			return p.do(cache.OpDowngrade, 0, "a", tok)
		})
		p.eventually("it is downgraded", func() bool {
			return p.do(cache.OpDowngrade, 0, "a", tok).Status == cache.Done
		})
		s, _ := other.take("a", cache.Shared)
		other.want(other.release("a", s), cache.Done)
		p.released("a", tok)
	}
}

func TestExpiredSessionIsLostAndItsGrantsWithIt(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	proxy, url := proxied(t, srv)
	p, other := newPeer(t, url+"?session=4s&timeout=1s"),
		newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	tok, base := p.take("a", cache.Exclusive)
	q := p.token()
	o, _ := other.take("b", cache.Exclusive)
	p.want(p.answered(func() cache.Result { return p.join("b", q) }), cache.Queued)
	first := p.want(p.answered(func() cache.Result { return p.renew("a", tok) }), cache.Done)
	proxy.BlackHole(faultproxy.Both, true)
	wait := other.token()
	for {
		r := other.join("a", wait)
		if r.Status == cache.Granted {
			if now := clock(); now < first.Session {
				t.Fatalf("another has it %v before the deadline", time.Duration(first.Session-now))
			}
			if r.Base <= base {
				t.Errorf("base %d after %d", r.Base, base)
			}
			break
		}
		other.want(r, cache.Queued)
	}
	p.lost(first.SessionNo)
	p.want(p.try("c", p.token()), cache.Refused)
	if err := proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	p.eventually("there is a new session", func() bool { return p.Ping(t.Context()) == nil })
	p.want(p.answered(func() cache.Result { return p.renew("a", tok) }), cache.NotHeld)
	p.want(p.answered(func() cache.Result { return p.release("a", tok) }), cache.NotHeld)
	again := p.token()
	p.want(p.answered(func() cache.Result { return p.try("a", again) }), cache.Busy)
	// its place was lost
	r := p.want(p.answered(func() cache.Result { return p.join("b", q) }), cache.Queued)
	if r.SessionNo <= first.SessionNo {
		t.Errorf("session %d after %d", r.SessionNo, first.SessionNo)
	}
	other.want(other.release("b", o), cache.Done)
	p.soon(cache.OpJoin, "b", q)
}

func TestSessionOverOnlyHereIsEndedAtTheServerToo(t *testing.T) {
	t.Parallel()
	// Our deadline passes while the server still has the session. Its nodes are deleted when the
	// server is reachable again, not when the session expires.
	srv := testserver.StartZooKeeper(t, "maxSessionTimeout=600000")
	proxy, url := proxied(t, srv)
	var ahead atomic.Int64
	cfg := config(t, url+"?session=300s&timeout=1s")
	cfg.Clock = func() int64 { return clock() + ahead.Load() }
	p := adopt(t, storetest.Opened(t, func() (*zookeeper.Store, error) {
		return zookeeper.Open(t.Context(), cfg)
	}))
	tok, _ := p.take("a", cache.Exclusive)
	no := p.want(p.answered(func() cache.Result { return p.renew("a", tok) }), cache.Done).SessionNo
	other := newPeer(t, srv.URL())
	ahead.Store(int64(400 * time.Second)) // as if the machine had been suspended
	proxy.Cut()
	p.lost(no)
	other.soon(cache.OpTry, "a", other.token())
}

func TestCutConnectionIsResumed(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	proxy, url := proxied(t, srv)
	p, other := newPeer(t, url+"?session=30s&timeout=5s"), newPeer(t, srv.URL())
	tok, _ := p.take("a", cache.Exclusive)
	no := p.want(p.renew("a", tok), cache.Done).SessionNo
	b, _ := other.take("b", cache.Exclusive)
	q := p.token()
	p.want(p.join("b", q), cache.Queued)
	for range 3 {
		proxy.Cut()
		p.eventually("it is back", func() bool { return p.renew("a", tok).Status == cache.Done })
	}
	w := other.token()
	other.want(other.join("a", w), cache.Queued)
	p.hinted(cache.HintContended, "a")
	if r := p.want(p.renew("a", tok), cache.Done); !r.Contended || r.SessionNo != no {
		t.Errorf("contended %v, session %d after %d", r.Contended, r.SessionNo, no)
	}
	for len(p.Hints()) > 0 {
		<-p.Hints()
	}
	p.want(p.join("b", q), cache.Queued)
	other.want(other.release("b", b), cache.Done)
	p.hinted(cache.HintAvailable, "b")
	p.want(p.join("b", q), cache.Granted)
}

func TestMemberLostKeepsTheSession(t *testing.T) {
	t.Parallel()
	all := testserver.StartZooKeeperEnsemble(t, 3)
	var hosts []string
	for _, z := range all {
		hosts = append(hosts, z.Addr())
	}
	p := newPeer(t, "zookeeper://"+strings.Join(hosts, ",")+"/locks?session=40s&timeout=2s")
	tok, base := p.take("a", cache.Exclusive)
	no := p.want(p.renew("a", tok), cache.Done).SessionNo
	alive := func() {
		t.Helper()
		p.eventually("it is renewed", func() bool { return p.renew("a", tok).Status == cache.Done })
		if r := p.renew("a", tok); r.Status == cache.Done && r.SessionNo != no {
			t.Fatalf("session %d after %d", r.SessionNo, no)
		}
	}
	for _, lost := range []func(*testserver.ZooKeeper) bool{(*testserver.ZooKeeper).Leads,
		func(z *testserver.ZooKeeper) bool { return connected(z, p) }} {
		for _, z := range all {
			if lost(z) {
				z.Kill()
				alive()
				z.Start()
				break
			}
		}
	}
	alive()

	// The store leaves a server that hangs for another.
	for _, z := range all {
		if connected(z, p) {
			z.Pause()
			alive()
			z.Resume()
			break
		}
	}

	// Without a quorum the store is down. Held leases stay, and continue afterwards.
	all[0].Kill()
	all[1].Kill()
	p.eventually("the store is down", func() bool {
		res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: "b", Token: p.token(), TTL: long})
		if res[0].Status != cache.Refused && res[0].Status != cache.Unknown &&
			res[0].Status != cache.Granted {
			t.Fatalf("it is %v", res[0].Status)
		}
		return res[0].Status == cache.Refused && errors.Is(err, upstream.ErrDown)
	})
	all[0].Start()
	alive()
	p.want(p.release("a", tok), cache.Done)
	if _, next := p.take("a", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

// connected reports whether p's session is connected to z. It finds the session by its own node.
func connected(z *testserver.ZooKeeper, p *peer) bool {
	locks, _, err := p.List(p.Context(), "", "", 10)
	if err != nil || len(locks) != 1 {
		return false
	}
	id := strings.Fields(strings.TrimPrefix(locks[0].Holder, "session "))[0]
	return strings.Contains(z.Say("cons"), "sid=0x"+strings.TrimLeft(id[2:], "0"))
}

func TestDeletedNodeIsLostAtOnce(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p, other := newPeer(t, srv.URL()), newPeer(t, srv.URL())
	for _, contended := range []bool{false, true} {
		key := map[bool]string{false: "alone", true: "contended"}[contended]
		tok, _ := p.take(key, cache.Exclusive)
		q := other.token()
		if contended {
			other.want(other.join(key, q), cache.Queued)
			p.hinted(cache.HintContended, key)
		}
		del(t, srv.Admin(), "/"+key, 0)
		p.hinted(cache.HintGone, key)
		p.want(p.renew(key, tok), cache.NotHeld)
		if contended {
			other.hinted(cache.HintAvailable, key)
			other.want(other.join(key, q), cache.Granted)
		}
		p.want(p.release(key, tok), cache.NotHeld)
	}
	// All nodes of a lock are deleted, and a place in its queue.
	tok, _ := p.take("b", cache.Exclusive)
	q := other.token()
	other.want(other.join("b", q), cache.Queued)
	del(t, srv.Admin(), "/b", 1)
	r := other.join("b", q)
	if r.Status != cache.Refused && r.Status != cache.Queued {
		t.Fatalf("it is %v", r.Status)
	}
	other.want(other.join("b", q), cache.Queued)
	p.want(p.release("b", tok), cache.Done)
	other.want(other.join("b", q), cache.Granted)
}

// del deletes the nth child of path.
func del(t testing.TB, c *zk.Conn, path string, n int) {
	t.Helper()
	if err := c.Delete(path+"/"+nth(t, c, path, n), -1); err != nil {
		t.Fatal(err)
	}
}

// nth returns the nth child of path by number.
func nth(t testing.TB, c *zk.Conn, path string, n int) string {
	t.Helper()
	names, _, err := c.Children(path)
	if err != nil || len(names) <= n {
		t.Fatalf("%s has %d children (%v)", path, len(names), err)
	}
	slices.SortFunc(names, func(a, b string) int {
		return strings.Compare(a[len(a)-10:], b[len(b)-10:])
	})
	return names[n]
}

func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	s, err := zookeeper.Open(t.Context(), config(t, srv.URL()))
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{TB: t, Store: s}
	p.take("k", cache.Exclusive)
	as := func(n int) func() bool {
		return func() bool { return s.Connections() == n && testserver.Connections(t, srv.Addr()) == n }
	}
	p.eventually("one, as the kernel says", as(1))
	srv.Kill()
	p.eventually("none when the server has gone", as(0))
	srv.Start()
	p.eventually("one again", as(1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	p.eventually("none after the end", as(0))
}
