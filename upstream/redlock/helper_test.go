package redlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redlock"
	"github.com/locksidecar/locksidecar/upstream/storetest"
)

const (
	long  = time.Minute
	bound = 60 * time.Second // for events that occur soon; only a fault reaches it
)

// peer is a store with tokens that rise.
type peer struct {
	testing.TB
	*redlock.Store
	last atomic.Uint64
}

// newPeer opens a store on url and closes it with the test.
func newPeer(t testing.TB, url string, set ...func(*redlock.Config)) *peer {
	t.Helper()
	p := &peer{TB: t, Store: open(t, url, set...)}
	t.Cleanup(p.end)
	return p
}

// end closes the store. It can be called again.
func (p *peer) end() {
	if p.Store == nil {
		return
	}
	if err := p.Close(); err != nil {
		p.Error(err)
	}
	p.Store = nil
}

func (p *peer) token() uint64 { return p.last.Add(1) }

func (p *peer) apply(ops ...upstream.Op) ([]upstream.Result, error) {
	return p.applyIn(p.Info().Timeout, ops...)
}

// failing carries out ops that end by the nodes' timeouts, however long this process stalls
// meanwhile.
func (p *peer) failing(ops ...upstream.Op) ([]upstream.Result, error) {
	return p.applyIn(bound, ops...)
}

func (p *peer) applyIn(d time.Duration, ops ...upstream.Op) ([]upstream.Result, error) {
	res := make([]upstream.Result, len(ops))
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	err := p.Apply(ctx, ops, res)
	return res, err
}

func (p *peer) op(op upstream.Op) upstream.Result {
	if op.TTL == 0 {
		op.TTL = long
	}
	res, _ := p.apply(op)
	return res[0]
}

func (p *peer) do(kind cache.OpKind, mode cache.Mode, key string, token uint64) upstream.Result {
	return p.op(upstream.Op{Kind: kind, Mode: mode, Key: key, Token: token})
}

func (p *peer) try(key string) upstream.Result {
	return p.do(cache.OpTry, cache.Exclusive, key, p.token())
}

func (p *peer) want(r upstream.Result, st cache.Status) {
	p.Helper()
	storetest.Want(p.TB, r, st)
}

// take is a try that must succeed. renew and release must be Done.
func (p *peer) take(key string, mode cache.Mode) (token, base uint64) {
	p.Helper()
	token = p.token()
	r := p.do(cache.OpTry, mode, key, token)
	p.want(r, cache.Granted)
	return token, r.Base
}

// repeated repeats a try until it succeeds, because a machine may stall for longer than the
// timeout.
func (p *peer) repeated(key string, mode cache.Mode) (token uint64) {
	p.Helper()
	token = p.token()
	soon(p, "it is granted", func() bool { return p.do(cache.OpTry, mode, key, token).Status == cache.Granted })
	return token
}

func (p *peer) renew(key string, token uint64) {
	p.Helper()
	p.want(p.do(cache.OpRenew, cache.Exclusive, key, token), cache.Done)
}

func (p *peer) release(key string, token uint64) {
	p.Helper()
	p.want(p.do(cache.OpRelease, cache.Exclusive, key, token), cache.Done)
}

// soon polls until ok returns true, which it must.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	storetest.Eventually(t, bound, what, ok)
}

// settled waits until the store has no pending releases.
func (p *peer) settled() {
	p.Helper()
	soon(p, "there are no pending releases", func() bool { _, pending := p.Left(); return pending == 0 })
}

// empty waits until no node has any key of a lock.
func (c cluster) empty(t testing.TB) {
	t.Helper()
	var left []string
	soon(t, "nothing is left", func() bool {
		left = c.residue(t, "lock:")
		return len(left) == 0 || t.Failed()
	})
}

// standing returns the number of nodes on which key is held.
func (c cluster) standing(key string) (n int) {
	for _, s := range c {
		n += int(s.Do("EXISTS", "lock:"+key).(int64))
	}
	return n
}
