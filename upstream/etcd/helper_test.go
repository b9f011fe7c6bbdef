package etcd_test

import (
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

const (
	long  = time.Minute
	bound = 60 * time.Second
	dir   = etcd.DefaultPrefix + "/"
)

func config(t testing.TB, query string, srvs ...*testserver.Etcd) etcd.Config {
	t.Helper()
	var hosts []string
	for _, s := range srvs {
		hosts = append(hosts, s.Addr())
	}
	cfg, err := etcd.Parse("etcd://" + strings.Join(hosts, ",") + "?" + query)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Timeout == etcd.DefaultTimeout { // a busy machine may stall for longer
		cfg.Timeout = 5 * time.Second
	}
	return cfg
}

// open opens a store on srv and closes it with the test.
func open(t testing.TB, srv *testserver.Etcd, query string) *etcd.Store {
	t.Helper()
	return openConfig(t, config(t, query, srv))
}

func openConfig(t testing.TB, cfg etcd.Config) *etcd.Store {
	t.Helper()
	s := storetest.Opened(t, func() (*etcd.Store, error) { return etcd.Open(t.Context(), cfg) })
	closeLater(t, s)
	return s
}

func closeLater(t testing.TB, s *etcd.Store) {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// peer is a store with tokens that rise, as a daemon has them.
type peer struct {
	testing.TB
	*etcd.Store
	last uint64
}

func newPeer(t testing.TB, srv *testserver.Etcd, query string) *peer {
	t.Helper()
	return &peer{TB: t, Store: open(t, srv, query)}
}

// lazyPeer is a peer that does not wait for its server.
func lazyPeer(t testing.TB, cfg etcd.Config) *peer {
	t.Helper()
	s, err := etcd.OpenLazy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
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

func (p *peer) want(r cache.Result, st cache.Status) {
	p.Helper()
	storetest.Want(p.TB, r, st)
}

// take is a try that must succeed.
func (p *peer) take(key string, mode cache.Mode) (token, base uint64) {
	p.Helper()
	token = p.token()
	r := p.do(cache.OpTry, mode, key, token)
	p.want(r, cache.Granted)
	return token, r.Base
}

// comes repeats an acquire with the same token until it is granted.
func (p *peer) comes(kind cache.OpKind, key string) (token, base uint64) {
	p.Helper()
	token = p.token()
	p.eventually("the key is granted", func() bool {
		r := p.do(kind, cache.Exclusive, key, token)
		base = r.Base
		return r.Status == cache.Granted
	})
	return token, base
}

// released repeats a release until the store has confirmed it.
func (p *peer) released(key string, token uint64) {
	p.Helper()
	p.eventually(key+" is released", func() bool {
		st := p.do(cache.OpRelease, cache.Exclusive, key, token).Status
		return st == cache.Done || st == cache.NotHeld
	})
}

func (p *peer) eventually(what string, ok func() bool) {
	p.Helper()
	eventually(p.TB, what, ok)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	storetest.Eventually(t, bound, what, ok)
}

// hinted waits for a hint.
func (p *peer) hinted(kind cache.HintKind, key string) {
	p.Helper()
	for end := time.After(bound); ; {
		select {
		case h := <-p.Hints():
			if h == (cache.Hint{Kind: kind, Key: key}) {
				return
			}
		case <-end:
			p.Fatalf("no hint %d comes of %s", kind, key)
		}
	}
}

// session waits for a state of the session for which ok returns true.
func (p *peer) session(what string, ok func(upstream.Session) bool) upstream.Session {
	p.Helper()
	for end := time.After(bound); ; {
		select {
		case s := <-p.Sessions():
			if ok(s) {
				return s
			}
		case <-end:
			p.Fatalf("no news of the session comes: %s", what)
		}
	}
}

func (p *peer) lost(no uint64) {
	p.Helper()
	p.session("lost", func(s upstream.Session) bool { return s.Lost && s.No >= no || s.No > no })
}

// keys returns the keys under the locks' prefix, without the keys of sessions.
func keys(t testing.TB, c *clientv3.Client) []string {
	t.Helper()
	r, err := c.Get(t.Context(), dir, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var ks []string
	for _, kv := range r.Kvs {
		if !strings.HasPrefix(string(kv.Key), dir+"%session/") {
			ks = append(ks, string(kv.Key))
		}
	}
	return ks
}
