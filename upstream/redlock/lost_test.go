package redlock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// proxied puts a proxy before each node.
func (c cluster) proxied(t *testing.T, query string) (xs []*faultproxy.Proxy, url string) {
	t.Helper()
	var hosts []string
	for _, s := range c {
		x, err := faultproxy.TCP(s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = x.Close() })
		xs, hosts = append(xs, x), append(hosts, x.Addr())
	}
	return xs, "redlock://" + strings.Join(hosts, ",") + "?" + query
}

func TestAnswersThatNeverComeAreSettled(t *testing.T) {
	t.Parallel()
	// The request is carried out in one case and lost in the other.
	for _, dir := range []faultproxy.Dir{faultproxy.ToClient, faultproxy.ToServer} {
		c := start(t, 5)
		xs, url := c.proxied(t, "timeout=400ms")
		p, q := newPeer(t, url), newPeer(t, c.url(patient))
		held := p.repeated("held", cache.Exclusive)
		lose := func(on bool) {
			for _, x := range xs {
				x.BlackHole(dir, on)
			}
		}
		var tok uint64
		var res []upstream.Result
		var err error
		soon(t, "both are sent", func() bool { // a busy machine may have made a node late already
			lose(false)
			soon(t, "the nodes answer", func() bool { return p.Ping(t.Context()) == nil })
			lose(true)
			tok = p.token()
			res, err = p.failing(upstream.Op{Kind: cache.OpTry, Key: "a", Token: tok, TTL: long},
				upstream.Op{Kind: cache.OpRelease, Key: "held", Token: held, TTL: long})
			return !slices.ContainsFunc(res, func(r upstream.Result) bool {
				return r.Status == cache.Refused
			})
		})
		for _, r := range res {
			if r.Status != cache.Unknown || r.Err == nil {
				t.Errorf("without an answer it is %v (%v)", r.Status, r.Err)
			}
		}
		if !errors.Is(err, upstream.ErrDown) {
			t.Errorf("the error is %v", err)
		}
		lose(false)
		// No op follows, but nothing remains of either request.
		p.settled()
		c.empty(t)
		q.take("a", cache.Exclusive)
		q.take("held", cache.Exclusive)
		soon(t, "the late release is answered", func() bool {
			st := p.do(cache.OpRelease, 0, "held", held).Status
			return st == cache.NotHeld || st == cache.Done
		})
		soon(t, "the late withdrawal is answered", func() bool {
			return p.do(cache.OpWithdraw, 0, "a", tok).Status == cache.Done
		})
		if a, h := c.standing("a"), c.standing("held"); a < 3 || h < 3 {
			t.Errorf("late requests of one host took the other's lease from nodes: it stands on %d and %d",
				a, h)
		}
	}
}

func TestCutConnectionsAreMadeAnew(t *testing.T) {
	t.Parallel()
	c := start(t, 5)
	xs, url := c.proxied(t, "timeout=5s")
	p := newPeer(t, url)
	tok, _ := p.take("held", cache.Exclusive)
	for i := range 20 {
		for j, x := range xs {
			if i%2 == 0 || j < 2 {
				x.Cut()
			}
		}
		if i%2 == 1 { // a minority loses it, which nobody notices
			p.renew("held", tok)
			continue
		}
		soon(t, "the lease is renewed", func() bool {
			r := p.do(cache.OpRenew, 0, "held", tok)
			if r.Status == cache.NotHeld {
				t.Fatal("it was lost")
			}
			return r.Status == cache.Done
		})
	}
	p.release("held", tok)
	p.settled()
	c.empty(t)
}
