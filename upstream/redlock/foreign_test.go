package redlock_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
)

// lock does what Redlock libraries do: SET NX PX on each node, and compare-and-delete on all nodes
// if there was no majority.
func (c cluster) lock(key, token string) bool {
	n := 0
	for _, s := range c {
		if s.Do("SET", "lock:"+key, token, "NX", "PX", "60000") != nil {
			n++
		}
	}
	if n <= len(c)/2 {
		c.unlock(key, token)
	}
	return n > len(c)/2
}

func (c cluster) unlock(key, token string) {
	const del = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end return 0`
	for _, s := range c {
		s.Do("EVAL", del, "1", "lock:"+key, token)
	}
}

func TestOtherRedlockLibrariesAndWeKeepEachOtherOut(t *testing.T) {
	c := start(t, 5)
	p := newPeer(t, c.url(patient))
	for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
		tok, _ := p.take("k", mode)
		p.settled()
		if c.lock("k", "foreign") {
			t.Fatalf("%v: a plain locker has it too", mode)
		}
		p.want(p.do(cache.OpRenew, mode, "k", tok), cache.Done)
		p.release("k", tok)
		soon(t, "each node is released", func() bool { return c.standing("k") == 0 })
		if !c.lock("k", "foreign") {
			t.Fatalf("%v: a plain locker does not get what is released", mode)
		}
		for range 3 {
			p.want(p.do(cache.OpTry, mode, "k", p.token()), cache.Busy)
			p.want(p.do(cache.OpJoin, mode, "k", p.token()), cache.Queued)
			p.want(p.do(cache.OpPeek, 0, "k", 0), cache.Busy)
		}
		if n := c.standing("k"); n != 5 {
			t.Errorf("%v: the plain locker's stands on %d nodes", mode, n)
		}
		c.unlock("k", "foreign")
		p.release("k", func() uint64 { tok, _ := p.take("k", mode); return tok }())
	}
	// A minority of votes of a dead locker blocks nobody.
	c[0].Do("SET", "lock:k", "dead", "PX", "60000")
	c[1].Do("SET", "lock:k", "dead", "PX", "60000")
	tok, _ := p.take("k", cache.Exclusive)
	p.renew("k", tok)
	p.release("k", tok)
	soon(t, "the nodes without it are released too", func() bool { return c.standing("k") == 2 })
	// A key of another type blocks nobody, either.
	c[2].Do("LPUSH", "lock:k", "x")
	p.want(p.try("k"), cache.Busy)
}
