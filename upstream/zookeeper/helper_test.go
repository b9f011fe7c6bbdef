package zookeeper_test

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

const (
	long  = time.Minute
	bound = 60 * time.Second
)

// peer is a store with tokens that rise.
type peer struct {
	testing.TB
	*zookeeper.Store
	last uint64
}

func config(t testing.TB, url string) zookeeper.Config {
	t.Helper()
	cfg, err := zookeeper.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Clock = clock
	return cfg
}

// newPeer opens a store and closes it with the test. Unless url has parameters, its session and
// timeout are longer than a busy machine stalls.
func newPeer(t testing.TB, url string) *peer {
	t.Helper()
	if !strings.Contains(url, "?") {
		url += "?session=30s&timeout=10s"
	}
	cfg := config(t, url)
	return adopt(t, storetest.Opened(t, func() (*zookeeper.Store, error) {
		return zookeeper.Open(t.Context(), cfg)
	}))
}

// lazyPeer returns a peer that does not wait for its server.
func lazyPeer(t testing.TB, url string) *peer {
	t.Helper()
	s, err := zookeeper.OpenLazy(config(t, url))
	if err != nil {
		t.Fatal(err)
	}
	return adopt(t, s)
}

func adopt(t testing.TB, s *zookeeper.Store) *peer {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &peer{TB: t, Store: s}
}

func (p *peer) token() uint64 { p.last++; return p.last }

func (p *peer) apply(ops ...upstream.Op) ([]cache.Result, error) {
	return storetest.Apply(p.Store, ops...)
}

func (p *peer) do(kind cache.OpKind, mode cache.Mode, key string, token uint64) cache.Result {
	res, _ := p.apply(upstream.Op{Kind: kind, Mode: mode, Key: key, Token: token, TTL: long})
	return res[0]
}

func (p *peer) try(key string, token uint64) cache.Result {
	return p.do(cache.OpTry, cache.Exclusive, key, token)
}

func (p *peer) join(key string, token uint64) cache.Result {
	return p.do(cache.OpJoin, cache.Exclusive, key, token)
}

func (p *peer) renew(key string, token uint64) cache.Result {
	return p.do(cache.OpRenew, cache.Exclusive, key, token)
}

func (p *peer) release(key string, token uint64) cache.Result {
	return p.do(cache.OpRelease, cache.Exclusive, key, token)
}

func (p *peer) want(r cache.Result, st cache.Status) cache.Result {
	p.Helper()
	storetest.Want(p.TB, r, st)
	return r
}

// take is a try that must succeed once the server has answered it.
func (p *peer) take(key string, mode cache.Mode) (token, base uint64) {
	p.Helper()
	token = p.token()
	return token, p.want(p.answered(func() cache.Result { return p.do(cache.OpTry, mode, key, token) }), cache.Granted).Base
}

// soon repeats an acquire until it is granted.
func (p *peer) soon(kind cache.OpKind, key string, token uint64) (r cache.Result) {
	p.Helper()
	p.eventually("it is granted", func() bool {
		r = p.do(kind, cache.Exclusive, key, token)
		return r.Status == cache.Granted
	})
	return r
}

// answered repeats an op until the server has answered it. While connections are being cut, or
// while the machine stalls for longer than the timeout, the op may be Refused or Unknown any number
// of times.
func (p *peer) answered(op func() cache.Result) (r cache.Result) {
	p.Helper()
	p.eventually("it is answered", func() bool {
		r = op()
		return r.Status != cache.Refused && r.Status != cache.Unknown
	})
	return r
}

func (p *peer) eventually(what string, ok func() bool) {
	p.Helper()
	storetest.Eventually(p.TB, bound, what, ok)
}

// lost waits until the store says that its session no is lost.
func (p *peer) lost(no uint64) {
	p.Helper()
	deadline := time.After(bound)
	for {
		select {
		case n := <-p.Sessions():
			if n.No > no || n.No == no && n.Lost {
				return
			}
		case <-deadline:
			p.Fatal("the session is never said to be lost")
		}
	}
}

// hinted waits for a hint.
func (p *peer) hinted(kind cache.HintKind, key string) {
	p.Helper()
	deadline := time.After(bound)
	for {
		select {
		case h := <-p.Hints():
			if h == (upstream.Hint{Kind: kind, Key: key}) {
				return
			}
		case <-deadline:
			p.Fatalf("hint %d about %s never comes", kind, key)
		}
	}
}

// says checks that err contains all of parts, and no secret.
func says(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Error("there is no error")
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q does not name %q", err, p)
		}
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%q shows a secret", err)
	}
}
