package redis_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// down reports whether a try of key and a ping report that the store is down.
func (p *peer) down(key string) (try, ping bool) {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), p.Info().Timeout)
	defer cancel()
	res := make([]cache.Result, 1)
	err := p.Apply(ctx, []upstream.Op{{Kind: cache.OpTry, Key: key, Token: p.token(),
		TTL: time.Second}}, res)
	if st := res[0].Status; (err == nil) != (st == cache.Granted || st == cache.Busy) {
		p.Errorf("%v comes with error %v", st, err)
	}
	ctx, cancel2 := context.WithTimeout(context.Background(), p.Info().Timeout)
	defer cancel2()
	return errors.Is(err, upstream.ErrDown), errors.Is(p.Ping(ctx), upstream.ErrDown)
}

func (p *peer) isDown(what string, want, wantPing bool) {
	p.Helper()
	p.eventually("that "+what+" is noticed", func() bool {
		try, ping := p.down("k")
		return try == want && ping == wantPing
	})
}

func TestAServerIsDownWhenItCannotBeReachedOrCannotWrite(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "timeout=300ms")
	p.isDown("all is well", false, false)
	srv.Do("CONFIG", "SET", "maxmemory", "1")
	p.eventually("a server that is full refuses", func() bool {
		return p.do(cache.OpTry, 0, "m", p.token()).Status == cache.Refused
	})
	p.isDown("a server that is full", false, false)
	srv.Do("CONFIG", "SET", "maxmemory", "0")
	srv.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	try, _ := p.down("k")
	if !try {
		t.Error("without replicas that it needs to write it is not down")
	}
	srv.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	srv.Do("REPLICAOF", "127.0.0.1", "1")
	p.isDown("a replica", true, true)
	srv.Do("REPLICAOF", "NO", "ONE")
	p.isDown("a master again", false, false)
	srv.Pause()
	p.isDown("silence", true, true)
	srv.Resume()
	p.isDown("an answer", false, false)
	srv.Kill()
	p.isDown("the end", true, true)
	srv.Start()
	p.isDown("the start", false, false)
	// An op that is refused because of its request says nothing about the server.
	res := make([]cache.Result, 1)
	if err := p.Apply(t.Context(), []upstream.Op{{Kind: cache.OpTry, Key: "x", Floor: cache.MaxBase,
		TTL: long}}, res); err == nil || errors.Is(err, upstream.ErrDown) {
		t.Error(err)
	}
}

func TestAClusterIsDownWhenAllOfItIs(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	p := onCluster(t, c, "timeout=2s")
	p.isDown("all is well", false, false)
	owner := c.Owner(c.Slot("lock:k"))
	elsewhere := "a"
	for c.Owner(c.Slot("lock:"+elsewhere)) == owner {
		elsewhere += "a"
	}
	// A silent node does not delay ops for the other nodes.
	owner.Pause()
	p.eventually("it is not asked any more", func() bool {
		return p.do(cache.OpTry, 0, "k", p.token()).Status == cache.Refused
	})
	r := p.apply(upstream.Op{Kind: cache.OpTry, Key: elsewhere, Token: p.token(), TTL: long},
		upstream.Op{Kind: cache.OpTry, Key: "k", Token: p.token(), TTL: long})
	p.want(r[0], cache.Granted)
	if try, ping := p.down("k"); try || ping {
		t.Errorf("one of three is silent, and it is down: %v, %v", try, ping)
	}
	owner.Resume()
	p.eventually("it is asked again", func() bool {
		st := p.do(cache.OpTry, 0, "k", p.token()).Status
		return st == cache.Granted || st == cache.Busy
	})
	for _, n := range c.Nodes {
		n.Kill()
	}
	p.isDown("the end of all", true, true)
	for _, n := range c.Nodes {
		n.Start()
	}
	p.isDown("the start", false, false)
}
