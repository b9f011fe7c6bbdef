package mysql_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/mysql"
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
	*mysql.Store
	last uint64
}

func newPeer(t *testing.T, url string, set ...func(*mysql.Config)) *peer {
	t.Helper()
	return &peer{T: t, Store: open(t, url, set...)}
}

// lazyPeer is a peer that does not wait for its server.
func lazyPeer(t *testing.T, url string, set ...func(*mysql.Config)) *peer {
	t.Helper()
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := mysql.OpenLazy(storetest.With(cfg, set))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &peer{T: t, Store: s}
}

func (p *peer) token() uint64 { p.last++; return p.last }

// apply carries out a batch within the store's own time.
func (p *peer) apply(ops ...upstream.Op) ([]cache.Result, error) {
	return storetest.Apply(p.Store, ops...)
}

func (p *peer) do(kind cache.OpKind, mode cache.Mode, key string, token uint64) cache.Result {
	res, _ := p.apply(upstream.Op{Kind: kind, Mode: mode, Key: key, Token: token, TTL: long})
	return res[0]
}

// unanswered applies op and loses the answer once done says that it has happened. It applies op
// again if nothing was sent. On a busy machine a connection may have to be made first, and its
// answers are lost, too.
func (p *peer) unanswered(px *faultproxy.Proxy, what string, op upstream.Op,
	done func() bool) (cache.Result, error) {
	p.Helper()
	for {
		px.Stall(faultproxy.ToClient, true)
		var res []cache.Result
		var err error
		ended := make(chan struct{})
		go func() { defer close(ended); res, err = p.apply(op) }()
		p.eventually(what, func() bool {
			select {
			case <-ended:
				return true
			default:
				return done()
			}
		})
		px.Cut()
		<-ended
		if err := px.Heal(); err != nil {
			p.Fatal(err)
		}
		if res[0].Status != cache.Refused {
			return res[0], err
		}
	}
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

// settle withdraws a token as a daemon does, until the key is free, because the server may carry
// out the acquire after the first withdrawal.
func (p *peer) settle(key string, token uint64) {
	p.Helper()
	p.eventually("the unresolved request is withdrawn", func() bool {
		return p.do(cache.OpWithdraw, cache.Exclusive, key, token).Status == cache.Done &&
			p.do(cache.OpPeek, 0, key, 0).Status == cache.Done
	})
}

func (p *peer) eventually(what string, ok func() bool) {
	p.Helper()
	eventually(p.T, what, ok)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	storetest.Eventually(t, bound, what, ok)
}

// statusTable returns the name of the table with the server's counters.
func statusTable() string {
	if testserver.IsMySQL() {
		return "performance_schema.global_status"
	}
	return "information_schema.global_status"
}
