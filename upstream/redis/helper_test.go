package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

const (
	long  = time.Minute
	bound = 60 * time.Second
)

// peer is a store with tokens that rise.
type peer struct {
	*testing.T
	*redis.Store
	last uint64
}

func newPeer(t *testing.T, srv *testserver.Redis, query string) *peer {
	t.Helper()
	return &peer{T: t, Store: open(t, srv, query)}
}

// lazyPeer returns a peer that does not wait for its server.
func lazyPeer(t *testing.T, url string) *peer {
	t.Helper()
	cfg, err := redis.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.OpenLazy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &peer{T: t, Store: s}
}

func (p *peer) token() uint64 { p.last++; return p.last }

func (p *peer) do(kind cache.OpKind, mode cache.Mode, key string, token uint64) cache.Result {
	res, _ := storetest.Apply(p.Store, upstream.Op{Kind: kind, Mode: mode, Key: key,
		Token: token, TTL: long})
	return res[0]
}

func (p *peer) want(r cache.Result, st cache.Status) {
	p.Helper()
	storetest.Want(p.T, r, st)
}

// take is a try that must succeed.
func (p *peer) take(key string, mode cache.Mode) (token, base uint64) {
	p.Helper()
	token = p.token()
	r := p.do(cache.OpTry, mode, key, token)
	p.want(r, cache.Granted)
	return token, r.Base
}

// repeated repeats a try until it succeeds, because a machine may stall for longer than the
// timeout.
func (p *peer) repeated(key string) (token uint64) {
	p.Helper()
	token = p.token()
	p.eventually("it is granted", func() bool { return p.do(cache.OpTry, cache.Exclusive, key, token).Status == cache.Granted })
	return token
}

func (p *peer) eventually(what string, ok func() bool) {
	p.Helper()
	storetest.Eventually(p.T, bound, what, ok)
}

// pair starts a master with one connected replica.
func pair(t testing.TB, args ...string) (master, replica *testserver.Redis) {
	t.Helper()
	master = testserver.StartRedis(t, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)
	replica = testserver.StartRedis(t, append([]string{"--replicaof",
		"127.0.0.1 " + strconv.Itoa(master.Port())}, args...)...)
	for end := time.Now().Add(bound); !strings.Contains(fmt.Sprint(master.Do("INFO", "replication")),
		",state=online,") || replica.Info("master_link_status") != "up"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the replica does not follow")
		}
	}
	return master, replica
}

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
