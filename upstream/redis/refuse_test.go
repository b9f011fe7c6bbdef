package redis_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestOutOfMemoryRefusesAcquiresAndKeepsLeases(t *testing.T) {
	srv := testserver.StartRedis(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "")
	ex, _ := p.take("ex", cache.Exclusive)
	sh, _ := p.take("sh", cache.Shared)
	sh2, _ := q.take("sh", cache.Shared)
	down, _ := p.take("down", cache.Exclusive)
	queued := q.token()
	q.want(q.do(cache.OpJoin, cache.Exclusive, "ex", queued), cache.Queued)
	srv.Do("CONFIG", "SET", "maxmemory", "1")

	for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			r := q.do(kind, mode, "new", q.token())
			q.want(r, cache.Refused)
			if !errors.Is(r.Err, redis.ErrRefused) || !strings.Contains(r.Err.Error(), "OOM") {
				t.Errorf("the reason is %v", r.Err)
			}
			q.want(q.do(kind, mode, "ex", q.last), cache.Refused)
		}
	}
	q.want(q.do(cache.OpPeek, 0, "new", 0), cache.Done)
	p.want(p.do(cache.OpRenew, cache.Exclusive, "ex", ex), cache.Done)
	p.want(p.do(cache.OpRenew, cache.Shared, "sh", sh), cache.Done)
	q.want(q.do(cache.OpRenew, cache.Shared, "sh", sh2), cache.Done)
	p.want(p.do(cache.OpDowngrade, cache.Exclusive, "down", down), cache.Done)
	p.want(p.do(cache.OpRenew, cache.Shared, "down", down), cache.Done)
	p.want(p.rebase("ex", ex), cache.Done)
	// In one batch, an op that frees memory does not let the others be carried out partly.
	res := make([]cache.Result, 3)
	_ = p.Apply(t.Context(), []upstream.Op{
		{Kind: cache.OpTry, Key: "n1", Token: p.token(), TTL: long},
		{Kind: cache.OpRelease, Key: "sh", Token: sh},
		{Kind: cache.OpTry, Mode: cache.Shared, Key: "n2", Token: p.token(), TTL: long}}, res)
	for i, st := range []cache.Status{cache.Refused, cache.Done, cache.Refused} {
		p.want(res[i], st)
	}
	q.want(q.do(cache.OpRelease, cache.Shared, "sh", sh2), cache.Done)
	q.want(q.do(cache.OpPeek, 0, "sh", 0), cache.Done)
	p.want(p.do(cache.OpRelease, cache.Exclusive, "ex", ex), cache.Done)
	q.want(q.do(cache.OpWithdraw, cache.Exclusive, "ex", queued), cache.Done)

	srv.Do("CONFIG", "SET", "maxmemory", "0")
	q.take("new", cache.Exclusive)
	q.take("ex", cache.Exclusive)
}

func (p *peer) rebase(key string, token uint64) cache.Result {
	res := make([]cache.Result, 1)
	_ = p.Apply(p.Context(), []upstream.Op{{Kind: cache.OpRenew, Rebase: true, Key: key, Token: token,
		TTL: long}}, res)
	if res[0].Base == 0 {
		p.Error("there is no new base")
	}
	return res[0]
}

func TestReplicaRefuses(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	a, _ := p.take("a", cache.Exclusive)
	b, _ := p.take("b", cache.Shared)
	srv.Do("REPLICAOF", "127.0.0.1", "1") // there is no master, so the data stays
	ops := []upstream.Op{
		{Kind: cache.OpTry, Key: "c", Token: p.token(), TTL: long},
		{Kind: cache.OpTry, Mode: cache.Shared, Key: "d", Token: p.token(), TTL: long},
		{Kind: cache.OpJoin, Key: "e", Token: p.token(), TTL: long},
		{Kind: cache.OpRenew, Key: "a", Token: a, TTL: long},
		{Kind: cache.OpRenew, Mode: cache.Shared, Key: "b", Token: b, TTL: long},
		{Kind: cache.OpDowngrade, Key: "a", Token: a, TTL: long},
		{Kind: cache.OpRelease, Key: "a", Token: a},
		{Kind: cache.OpRelease, Key: "b", Token: b},
	}
	for i := range ops {
		r := p.do(ops[i].Kind, ops[i].Mode, ops[i].Key, ops[i].Token)
		if r.Status != cache.Refused {
			t.Errorf("%v %v is %v (%v)", ops[i].Kind, ops[i].Mode, r.Status, r.Err)
		}
	}
	cfg, err := redis.Parse(srv.URL() + "?timeout=5s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redis.Open(t.Context(), cfg); !errors.Is(err, redis.ErrServer) ||
		!strings.Contains(err.Error(), "replica") {
		t.Errorf("opening it: %v", err)
	}
	// A new connection is checked before a request is sent on it.
	srv.Do("CLIENT", "KILL", "TYPE", "normal")
	p.eventually("the connection is gone", func() bool {
		r := p.do(cache.OpTry, cache.Exclusive, "c", p.token())
		return r.Status == cache.Refused && errors.Is(r.Err, redis.ErrServer)
	})
	srv.Do("REPLICAOF", "NO", "ONE")
	p.eventually("leases are renewed again", func() bool {
		return p.do(cache.OpRenew, cache.Exclusive, "a", a).Status == cache.Done
	})
	p.want(p.do(cache.OpRelease, cache.Exclusive, "b", b), cache.Done)
	p.take("c", cache.Exclusive)
}

func TestServerThatMayEvictIsRefusedUnlessAllowed(t *testing.T) {
	srv := testserver.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	cfg, err := redis.Parse(srv.URL() + "?timeout=5s")
	if err != nil {
		t.Fatal(err)
	}
	_, err = redis.Open(t.Context(), cfg)
	if !errors.Is(err, redis.ErrServer) {
		t.Fatalf("opening it: %v", err)
	}
	for _, says := range []string{"allkeys-lru", "noeviction", "allow_eviction=true"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%q does not name %s", err, says)
		}
	}
	p := lazyPeer(t, srv.URL())
	r := p.do(cache.OpTry, cache.Exclusive, "a", p.token())
	p.want(r, cache.Refused)
	if !errors.Is(r.Err, redis.ErrServer) {
		t.Errorf("the reason is %v", r.Err)
	}
	newPeer(t, srv, "allow_eviction=true").take("a", cache.Exclusive)
	srv.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	p.want(p.do(cache.OpTry, cache.Exclusive, "a", p.token()), cache.Busy)
}

func TestServerOfAClusterIsRefused(t *testing.T) {
	srv := testserver.StartRedis(t, "--cluster-enabled", "yes")
	cfg, err := redis.Parse(srv.URL() + "?timeout=5s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redis.Open(t.Context(), cfg); !errors.Is(err, redis.ErrServer) ||
		!strings.Contains(err.Error(), "cluster") {
		t.Errorf("opening it: %v", err)
	}
}

func TestForeignTypeAtAKeyIsBusyAndTouchesNoNeighbour(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	srv.Do("RPUSH", "lock:list", "x")
	srv.Do("HSET", "lock:hash", "f", "v")
	srv.Do("SET", "lock:string", "forever")
	srv.Do("SADD", "locksidecar:{}:queue:lock:odd", "x")
	srv.Do("SADD", "locksidecar:{}:queued", "x")
	var ops []upstream.Op
	var want []cache.Status
	add := func(st cache.Status, kind cache.OpKind, mode cache.Mode, key string) {
		ops = append(ops, upstream.Op{Kind: kind, Mode: mode, Key: key, Token: p.token(), TTL: long})
		want = append(want, st)
	}
	for i, key := range []string{"list", "hash", "string"} {
		for _, c := range []struct {
			kind cache.OpKind
			mode cache.Mode
			want cache.Status
		}{{cache.OpTry, cache.Exclusive, cache.Busy}, {cache.OpTry, cache.Shared, cache.Busy},
			{cache.OpRelease, 0, cache.NotHeld},
			{cache.OpRenew, 0, cache.NotHeld}, {cache.OpDowngrade, 0, cache.NotHeld},
			{cache.OpPeek, 0, cache.Busy}, {cache.OpWithdraw, 0, cache.Done}} {
			add(c.want, c.kind, c.mode, key)
			add(cache.Granted, cache.OpTry, cache.Mode(i%2), key+c.kind.String()+c.mode.String())
		}
	}
	// A key of a wrong type has the name of a sibling. Only the op of its lock is refused.
	add(cache.Refused, cache.OpTry, cache.Exclusive, "odd")
	add(cache.Granted, cache.OpTry, cache.Exclusive, "even")
	res := make([]cache.Result, len(ops))
	_ = p.Apply(t.Context(), ops, res)
	for i := range ops {
		if res[i].Status != want[i] {
			t.Errorf("%v %v of %s is %v (%v), not %v", ops[i].Kind, ops[i].Mode, ops[i].Key, res[i].Status,
				res[i].Err, want[i])
		}
	}
	p.want(p.do(cache.OpJoin, cache.Exclusive, "string", p.token()), cache.Queued)
	if got := srv.Do("LRANGE", "lock:list", 0, -1).([]any); !slices.Equal(got, []any{"x"}) {
		t.Errorf("the foreign list is %v", got)
	}
}

func TestForeignTypeAtTheFenceIsReplaced(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	_, base := p.take("a", cache.Exclusive)
	srv.Do("DEL", "locksidecar:{}:fence")
	srv.Do("RPUSH", "locksidecar:{}:fence", "x")
	_, next := p.take("b", cache.Exclusive)
	if next <= base {
		t.Errorf("base %d after %d", next, base)
	}
	srv.Do("SET", "locksidecar:{}:fence", "9007199254740990")
	r := p.do(cache.OpTry, cache.Exclusive, "c", p.token())
	p.want(r, cache.Refused)
	if !strings.Contains(r.Err.Error(), "used up") {
		t.Errorf("the reason is %v", r.Err)
	}
	if v := srv.Do("GET", "locksidecar:{}:fence"); v != "9007199254740990" {
		t.Errorf("the counter was left at %v", v)
	}
}
