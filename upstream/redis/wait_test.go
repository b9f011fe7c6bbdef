package redis_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestWhatNoReplicaHasIsNeitherGrantedNorRenewed(t *testing.T) {
	t.Parallel()
	master, replica := pair(t)
	p, q := newPeer(t, master, "wait_replicas=1&wait_timeout=9s&timeout=10s"), newPeer(t, master, "")
	ex, _ := p.take("ex", cache.Exclusive)
	sh, _ := p.take("sh", cache.Shared)
	down, _ := p.take("down", cache.Exclusive)
	out, _ := p.take("out", cache.Exclusive)
	q.take("theirs", cache.Exclusive)
	replica.Pause()
	p = p.impatient(master)
	asked := p.token()
	for _, c := range []struct {
		kind  cache.OpKind
		mode  cache.Mode
		key   string
		token uint64
		want  cache.Status
	}{
		{cache.OpTry, cache.Exclusive, "new", asked, cache.Unknown},
		{cache.OpTry, cache.Shared, "news", p.token(), cache.Unknown},
		{cache.OpJoin, cache.Exclusive, "newj", p.token(), cache.Unknown},
		{cache.OpRenew, cache.Exclusive, "ex", ex, cache.Unknown},
		{cache.OpRenew, cache.Shared, "sh", sh, cache.Unknown},
		{cache.OpDowngrade, cache.Exclusive, "down", down, cache.Unknown},
		// Ops that grant nothing need no acknowledgement.
		{cache.OpRelease, cache.Exclusive, "out", out, cache.Done},
		{cache.OpWithdraw, cache.Exclusive, "out", p.token(), cache.Done},
		{cache.OpPeek, cache.Exclusive, "ex", 0, cache.Busy},
		{cache.OpTry, cache.Exclusive, "theirs", p.token(), cache.Busy},
		{cache.OpRenew, cache.Exclusive, "out", out, cache.NotHeld},
	} {
		r := p.do(c.kind, c.mode, c.key, c.token)
		p.want(r, c.want)
		if c.want == cache.Unknown && (!errors.Is(r.Err, redis.ErrAcks) ||
			!strings.Contains(r.Err.Error(), "wait_replicas")) {
			t.Errorf("the reason is %v", r.Err)
		}
		if r.Status == cache.Unknown && r.Base != 0 {
			t.Errorf("%v has base %d", c.kind, r.Base)
		}
	}
	// The server has carried it out, so it is an unresolved request.
	q.want(q.do(cache.OpTry, cache.Exclusive, "new", q.token()), cache.Busy)
	p.want(p.do(cache.OpWithdraw, cache.Exclusive, "new", asked), cache.Done)
	replica.Resume()
	p.eventually("the replica follows again", func() bool {
		return p.do(cache.OpRenew, cache.Exclusive, "ex", ex).Status == cache.Done
	})
	p.eventually("it grants again", func() bool {
		return p.do(cache.OpTry, cache.Exclusive, "new", p.token()).Status == cache.Granted
	})
	if replica.Admin().Get(t.Context(), "lock:new").Val() == "" {
		t.Error("the replica does not have what was granted")
	}
}

// impatient is the same daemon with less time for replicas.
func (p *peer) impatient(srv *testserver.Redis) *peer {
	p.Helper()
	return &peer{T: p.T, Store: open(p, srv, "wait_replicas=1&wait_timeout=100ms&timeout=10s",
		continuing(p.Instance())), last: p.last}
}

func TestARenewalLaneWaitsOnItsOwnConnection(t *testing.T) {
	t.Parallel()
	// WAIT counts the writes of its own connection. On another connection, it would succeed at once.
	master, replica := pair(t)
	p := newPeer(t, master, "wait_replicas=1&wait_timeout=9s&timeout=10s")
	var ops []upstream.Op
	for i := range 200 {
		ops = append(ops, upstream.Op{Kind: cache.OpTry, Key: strings.Repeat("k", i+1),
			Token: p.token(), TTL: long})
	}
	for _, r := range p.apply(ops...) {
		p.want(r, cache.Granted)
	}
	replica.Pause()
	defer replica.Resume()
	for i := range ops {
		ops[i].Kind = cache.OpRenew
	}
	p = p.impatient(master)
	for range 3 {
		for _, r := range p.apply(ops...) {
			p.want(r, cache.Unknown)
		}
	}
}

func TestTooFewReplicasAreRefusedAtStartAndWarnedOfLater(t *testing.T) {
	srv := testserver.StartRedis(t)
	_, err := openURL(t, srv.URL()+"?wait_replicas=1")
	if !errors.Is(err, redis.ErrServer) || !strings.Contains(err.Error(), "wait_replicas") {
		t.Errorf("opening it: %v", err)
	}
	cfg, err := redis.Parse(srv.URL() + "?wait_replicas=1&wait_timeout=50ms")
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.WarnLevel)
	cfg.Log = zap.New(core)
	s, err := redis.OpenLazy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := &peer{T: t, Store: s}
	p.want(p.do(cache.OpTry, 0, "k", p.token()), cache.Unknown)
	if logs.FilterMessageSnippet("fewer replicas").Len() != 1 {
		t.Errorf("it says %v", logs.All())
	}
}

func TestAServerTooOldForWAITAOFIsRefusedAtStart(t *testing.T) {
	srv := testserver.StartRedis(t, "--appendonly", "yes")
	if !strings.HasPrefix(srv.Info("redis_version"), "7.0.") {
		t.Skip("this server may have WAITAOF")
	}
	for _, query := range []string{"wait_aof=local", "wait_aof=1", "wait_aof=local,1"} {
		_, err := openURL(t, srv.URL()+"?"+query)
		if !errors.Is(err, redis.ErrServer) || !strings.Contains(err.Error(), "wait_aof") ||
			!strings.Contains(err.Error(), "7.2") {
			t.Errorf("%s: %v", query, err)
		}
	}
}

// A replica becomes the master while the old master, which is cut off, still serves. Unless grants
// wait for replicas, a second holder gets the lock beside the first. The fences differ in any case.
func TestOverlapAfterAFailoverWithAndWithoutWaiting(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		query   string
		granted cache.Status
	}{{"", cache.Granted}, {"wait_replicas=1&wait_timeout=100ms", cache.Unknown}} {
		master, replica := pair(t)
		p := newPeer(t, master, c.query)
		_, before := newPeer(t, master, "").take("before", cache.Exclusive)
		replica.Do("REPLICAOF", "NO", "ONE")
		r := p.do(cache.OpTry, cache.Exclusive, "k", p.token())
		p.want(r, c.granted)
		master.Kill()
		q := newPeer(t, replica, "")
		_, next := q.take("k", cache.Exclusive)
		if next <= r.Base || next <= before {
			t.Errorf("%q: base %d after %d and %d", c.query, next, r.Base, before)
		}
		overlaps := 0
		if r.Status == cache.Granted {
			overlaps = 1
		}
		t.Logf("%q: %d holder let in beside another", c.query, overlaps)
	}
}

func TestWaitingCountsAgainstTheTimeOfTheBatch(t *testing.T) {
	master, replica := pair(t)
	p := newPeer(t, master, "wait_replicas=1&wait_timeout=9s&timeout=10s")
	replica.Pause()
	defer replica.Resume()
	start := time.Now()
	res := make([]cache.Result, 1)
	ctx, cancel := contextFor(t, 100*time.Millisecond)
	defer cancel()
	_ = p.Apply(ctx, []upstream.Op{{Kind: cache.OpTry, Key: "k", Token: p.token(), TTL: long}}, res)
	p.want(res[0], cache.Unknown)
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}
