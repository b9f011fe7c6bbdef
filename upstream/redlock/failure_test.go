package redlock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redlock"
)

// These tests check the table in doc.go.

// patient has a timeout that a test reaches only if it fails.
const patient = "timeout=20s"

// goesOn checks that locks are granted, renewed, downgraded and released, each long before a node's
// timeout.
func goesOn(t *testing.T, p *peer) {
	t.Helper()
	for i := range 30 {
		mode, start := cache.Mode(i%2), time.Now()
		key := fmt.Sprint("go", i%3)
		tok, _ := p.take(key, mode)
		r := p.op(upstream.Op{Kind: cache.OpRenew, Mode: mode, Key: key, Token: tok, Rebase: i%3 == 0})
		p.want(r, cache.Done)
		p.want(p.do(cache.OpDowngrade, mode, key, tok), cache.Done)
		p.want(p.do(cache.OpPeek, 0, key, 0), cache.Busy)
		p.release(key, tok)
		if d := time.Since(start); d > 10*time.Second {
			t.Fatalf("one turn took %v", d)
		}
	}
}

func TestTwoOfFiveDown(t *testing.T) {
	c := start(t, 5)
	p := newPeer(t, c.url(patient))
	tok, base := p.take("held", cache.Exclusive)
	c[1].Kill()
	c[3].Kill()
	goesOn(t, p)
	p.renew("held", tok)
	p.want(newPeer(t, c.url(patient)).try("held"), cache.Busy)
	c[1].Start()
	c[3].Start()
	soon(t, "the lease stands on all nodes again", func() bool {
		p.renew("held", tok)
		return c.standing("held") == 5
	})
	// So the lease survives the loss of two other nodes.
	c[0].Kill()
	c[2].Kill()
	p.renew("held", tok)
	p.release("held", tok)
	if _, next := p.take("held", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

func TestTwoOfFivePaused(t *testing.T) {
	t.Parallel()
	c := start(t, 5)
	p := newPeer(t, c.url("timeout=5s"))
	tok, _ := p.take("held", cache.Exclusive)
	c[0].Pause()
	c[4].Pause()
	goesOn(t, p)
	p.renew("held", tok)
	p.release("held", tok)
	if err := p.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	c[0].Resume()
	c[4].Resume()
	p.settled()
	c.empty(t)
}

func TestTwoOfFiveSlow(t *testing.T) {
	t.Parallel()
	c := start(t, 5)
	hosts, slow := make([]string, 5), []*faultproxy.Proxy{}
	for i, s := range c {
		if hosts[i] = s.Addr(); i < 2 {
			x, err := faultproxy.TCP(s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = x.Close() })
			hosts[i], slow = x.Addr(), append(slow, x)
		}
	}
	p := newPeer(t, "redlock://"+strings.Join(hosts, ",")+"?"+patient)
	for _, x := range slow {
		x.Delay(faultproxy.Both, 1200*time.Millisecond)
	}
	start := time.Now()
	// These are 150 calls, of which a few wait a little for the slow nodes.
	goesOn(t, p)
	if d := time.Since(start); d > 80*time.Second { // 360 s and more if each call waited for them
		t.Errorf("it took %v", d)
	}
	p.settled()
	c.empty(t)
}

func TestTwoOfFiveFlushed(t *testing.T) {
	c := start(t, 5)
	p, q := newPeer(t, c.url(patient), redlock.WithGrace(bound)), newPeer(t, c.url(patient))
	tok, base := p.take("held", cache.Exclusive)
	rd, _ := p.take("read", cache.Shared)
	c[1].Do("FLUSHALL")
	c[2].Do("FLUSHALL")
	for range 5 { // the rest of the quorum keeps it
		p.want(q.try("held"), cache.Busy)
		p.want(q.try("read"), cache.Busy)
		q.settled()
	}
	// If another lease is being healed at a node, a renewal leaves the healing to the next renewal.
	soon(t, "the flushed nodes have the leases again", func() bool {
		p.renew("held", tok)
		p.want(p.do(cache.OpRenew, cache.Shared, "read", rd), cache.Done)
		return c.standing("held") == 5 && c.standing("read") == 5
	})
	c[3].Do("FLUSHALL")
	c[4].Do("FLUSHALL")
	p.want(q.try("held"), cache.Busy)
	p.renew("held", tok)
	p.release("held", tok)
	q.settled()
	// All nodes of the base's quorum have been flushed, one after the other. The later base is larger.
	if _, next := q.take("held", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

func TestThreeOfFiveFlushedIsLost(t *testing.T) {
	c := start(t, 5)
	p := newPeer(t, c.url(patient), redlock.WithGrace(bound))
	tok, _ := p.take("held", cache.Exclusive)
	for _, s := range c[:3] {
		s.Do("FLUSHALL")
	}
	p.want(p.do(cache.OpRenew, cache.Exclusive, "held", tok), cache.NotHeld)
	p.settled() // its remains block nobody
	c.empty(t)
	p.take("held", cache.Exclusive)
}

func TestThreeOfFiveDownIsDown(t *testing.T) {
	t.Parallel()
	c := start(t, 5)
	p := newPeer(t, c.url("timeout=500ms"))
	tok := p.repeated("held", cache.Exclusive)
	down := func(what string) {
		t.Helper()
		soon(t, what+" is noticed", func() bool { return p.do(cache.OpPeek, 0, "x", 0).Status == cache.Refused })
		for _, op := range []upstream.Op{
			{Kind: cache.OpTry, Key: "a", Token: p.token(), TTL: long},
			{Kind: cache.OpJoin, Mode: cache.Shared, Key: "a", Token: p.token(), TTL: long},
			{Kind: cache.OpRenew, Key: "held", Token: tok, TTL: long},
			{Kind: cache.OpPeek, Key: "a"},
		} {
			res, err := p.failing(op)
			if st := res[0].Status; st != cache.Refused && st != cache.Unknown || res[0].Err == nil {
				t.Errorf("%s: %v is %v (%v)", what, op.Kind, st, res[0].Err)
			}
			if !errors.Is(err, upstream.ErrDown) || !errors.Is(err, redlock.ErrNoQuorum) ||
				!strings.Contains(err.Error(), c[0].Addr()) {
				t.Errorf("%s: the error is %v", what, err)
			}
			if op.Kind == cache.OpTry || op.Kind == cache.OpJoin {
				p.do(cache.OpWithdraw, 0, "a", op.Token)
			}
		}
		if err := p.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) {
			t.Errorf("%s: the ping says %v", what, err)
		}
	}
	for _, s := range c[:3] {
		s.Pause()
	}
	down("a majority that is paused")
	for _, s := range c[:3] {
		s.Resume()
	}
	soon(t, "the lease is renewed", func() bool {
		return p.do(cache.OpRenew, 0, "held", tok).Status == cache.Done
	})
	p.settled()
	soon(t, "nothing else is left", func() bool { return len(c.residue(t, "lock:a")) == 0 })
	for _, s := range c[:3] {
		s.Kill()
	}
	down("a majority that is gone")
	for _, s := range c[:3] {
		s.Start()
	}
	soon(t, "a lock is had again", func() bool { return p.try("again").Status == cache.Granted })
}

func TestNothingIsLeftOfWhatWasOnItsWay(t *testing.T) {
	c := start(t, 5)
	p, q := newPeer(t, c.url(patient)), newPeer(t, c.url(patient))
	// Two nodes have requests in their sockets, and carry them out when they continue. These are
	// acquires whose release other nodes have carried out, and failed tries.
	c[0].Pause()
	c[1].Pause()
	tok, _ := p.take("a", cache.Exclusive)
	p.want(q.try("a"), cache.Busy)
	p.want(q.do(cache.OpJoin, cache.Shared, "a", q.token()), cache.Queued)
	p.release("a", tok)
	rd, _ := p.take("a", cache.Shared)
	p.want(p.do(cache.OpDowngrade, cache.Shared, "a", rd), cache.Done)
	p.release("a", rd)
	c[0].Resume()
	c[1].Resume()
	p.settled()
	q.settled()
	c.empty(t)
	p.end()
	q.want(q.do(cache.OpWithdraw, 0, "a", q.last.Load()), cache.Done)
	soon(t, "the tokens are forgotten", func() bool { leases, _ := q.Left(); return leases == 0 })
}

func TestAJoinIsQueuedWithTheTimeLeftAndLeavesNothing(t *testing.T) {
	c := start(t, 5)
	p, q := newPeer(t, c.url(patient), redlock.WithGrace(bound)), newPeer(t, c.url(patient))
	tok, _ := p.take("a", cache.Exclusive)
	j := q.token()
	for range 3 {
		r := q.do(cache.OpJoin, cache.Exclusive, "a", j)
		q.want(r, cache.Queued)
		if left := time.Duration(r.Left); left < long/2 || left > long {
			t.Errorf("there are %v left", left)
		}
	}
	p.release("a", tok)
	q.settled()
	c.empty(t)
	q.want(q.do(cache.OpJoin, cache.Exclusive, "a", j), cache.Granted)
	q.release("a", j)
	soon(t, "the tokens are forgotten", func() bool { leases, _ := q.Left(); return leases == 0 })
}

func TestARestartedNodeDoesNotVoteForMaxTTL(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	url := c.url("max_ttl=2s&timeout=2s")
	cfg, err := redlock.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redlock.Open(t.Context(), cfg, agedMember); err == nil ||
		!strings.Contains(err.Error(), "does not vote for another") {
		t.Fatalf("opening servers that have just started: %v", err)
	}
	s, err := redlock.OpenLazy(cfg, agedMember)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{TB: t, Store: s}
	t.Cleanup(p.end)
	soon(t, "they vote", func() bool {
		r := p.op(upstream.Op{Kind: cache.OpTry, Key: "a", Token: p.token(), TTL: time.Second})
		return r.Status == cache.Granted
	})
	// One node does not vote any more and one is down. The answer of the third alone does not count.
	soon(t, "the lock is had on all", func() bool { return p.Ping(t.Context()) == nil })
	c[2].Kill()
	c[0].Kill()
	restarted := time.Now()
	c[0].Start()
	n := 0
	for {
		r := p.op(upstream.Op{Kind: cache.OpTry, Key: fmt.Sprint("b", n), Token: p.token(),
			TTL: time.Second})
		if r.Status == cache.Granted {
			break
		}
		if n++; r.Err == nil || time.Since(restarted) > bound {
			t.Fatalf("it is %v (%v)", r.Status, r.Err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if d := time.Since(restarted); d < 2*time.Second {
		t.Errorf("it voted after %v", d)
	}
	// A TTL that is longer than max_ttl is refused.
	if r := p.try("c"); r.Status != cache.Refused || !strings.Contains(r.Err.Error(), "max_ttl") {
		t.Errorf("a TTL of a minute is %v (%v)", r.Status, r.Err)
	}
}

// The first of the two that answers has the vote, and the other has none.
func TestANodeThatAnswersLateIsKnownToBeAnothersServer(t *testing.T) {
	t.Parallel()
	const late = 200 * time.Millisecond
	c := start(t, 2)
	x, err := faultproxy.TCP(c[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	x.Delay(faultproxy.Both, late)
	cfg, err := redlock.Parse("redlock://" + x.Addr() + "," + c[1].Addr() + "," + c[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Timeout = 20 * time.Second
	if _, err := redlock.Open(t.Context(), cfg, member); !errors.Is(err, redlock.ErrSameServer) {
		t.Errorf("opening: %v", err)
	}
	cfg.Timeout = 2 * time.Second
	s, err := redlock.OpenLazy(cfg, member)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{TB: t, Store: s}
	t.Cleanup(p.end)
	c[1].Pause()
	defer c[1].Resume()
	// Readers share a key, so this server would vote twice for one of them.
	if r := p.op(upstream.Op{Kind: cache.OpTry, Key: "a", Mode: cache.Shared, Token: p.token(),
		TTL: time.Minute}); r.Status == cache.Granted {
		t.Error("one server was a quorum")
	}
}

func TestTwoNodesThatAreOneServerAreRefused(t *testing.T) {
	t.Parallel()
	c := start(t, 2)
	url := "redlock://" + c[0].Addr() + "," + c[1].Addr() + "," + strings.Replace(c[0].Addr(),
		"127.0.0.1", "localhost", 1)
	cfg, err := redlock.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	slow := cfg
	// A node that does not identify itself in time has no vote, but the store opens.
	slow.Timeout = 20 * time.Second
	if _, err := redlock.Open(t.Context(), slow, member); !errors.Is(err, redlock.ErrSameServer) {
		t.Errorf("opening: %v", err)
	}
	s, err := redlock.OpenLazy(cfg, member)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{TB: t, Store: s}
	t.Cleanup(p.end)
	p.repeated("a", cache.Exclusive) // two servers of three
	c[1].Pause()
	defer c[1].Resume()
	if r := p.try("b"); r.Status == cache.Granted {
		t.Error("one server was a quorum")
	}
}
