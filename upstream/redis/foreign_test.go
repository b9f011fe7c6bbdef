package redis_test

import (
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// plainLocker uses the textbook recipe: SET NX PX, and compare-and-delete.
type plainLocker struct {
	*testing.T
	srv *testserver.Redis
}

func (f plainLocker) lock(key, token string) bool {
	f.Helper()
	return f.srv.Do("SET", "lock:"+key, token, "NX", "PX", "60000") != nil
}

func (f plainLocker) unlock(key, token string) bool {
	f.Helper()
	const del = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end return 0`
	return f.srv.Do("EVAL", del, "1", "lock:"+key, token) == int64(1)
}

var modes = []cache.Mode{cache.Exclusive, cache.Shared}

func TestPlainLockerIsKeptOutByEitherMode(t *testing.T) {
	srv := testserver.StartRedis(t)
	p, q, f := newPeer(t, srv, ""), newPeer(t, srv, ""), plainLocker{t, srv}
	for _, mode := range modes {
		tok, _ := p.take("k", mode)
		if f.lock("k", "foreign") {
			t.Fatalf("%v: a plain locker has it too", mode)
		}
		p.want(p.do(cache.OpRenew, mode, "k", tok), cache.Done)
		if f.unlock("k", "foreign") || f.lock("k", "foreign") {
			t.Fatalf("%v: a plain locker broke it", mode)
		}
		p.want(p.do(cache.OpRelease, mode, "k", tok), cache.Done)
		if !f.lock("k", "foreign") || !f.unlock("k", "foreign") {
			t.Fatalf("%v: a plain locker does not get it afterwards", mode)
		}
	}
	// Several readers exclude it until the last of them ends, and a downgrade changes nothing.
	a, _ := p.take("k", cache.Exclusive)
	p.want(p.do(cache.OpDowngrade, 0, "k", a), cache.Done)
	b, _ := q.take("k", cache.Shared)
	for _, x := range []struct {
		*peer
		token uint64
	}{{p, a}, {q, b}} {
		if f.lock("k", "foreign") {
			t.Fatal("a plain locker has it beside readers")
		}
		x.want(x.do(cache.OpRelease, cache.Shared, "k", x.token), cache.Done)
	}
	if !f.lock("k", "foreign") {
		t.Error("a plain locker does not get it after the last reader")
	}
}

func TestPlainLockerKeepsBothModesOut(t *testing.T) {
	srv := testserver.StartRedis(t)
	p, f := newPeer(t, srv, ""), plainLocker{t, srv}
	for _, mode := range modes {
		for _, token := range []string{"foreign", "looks.likeours", "AAAAAAAAAAAAAAAAAAAAAA.1z", ""} {
			if !f.lock("k", token) {
				t.Fatalf("%q is not free", token)
			}
			p.want(p.do(cache.OpTry, mode, "k", p.token()), cache.Busy)
			r := p.do(cache.OpPeek, 0, "k", 0)
			p.want(r, cache.Busy)
			if r.Left <= 0 || r.Left > int64(long) {
				t.Errorf("there are %d ns left", r.Left)
			}
			// A waiter polls, because it gets no hint.
			w := p.token()
			p.want(p.do(cache.OpJoin, mode, "k", w), cache.Queued)
			p.want(p.do(cache.OpJoin, mode, "k", w), cache.Queued)
			if !f.unlock("k", token) {
				t.Fatalf("%q: the plain locker lost its lock", token)
			}
			p.want(p.do(cache.OpJoin, mode, "k", w), cache.Granted)
			p.want(p.do(cache.OpRelease, mode, "k", w), cache.Done)
		}
	}
}

func TestPlainLockerBargesPastTheQueueAndBreaksNothing(t *testing.T) {
	srv := testserver.StartRedis(t)
	p, q, f := newPeer(t, srv, ""), newPeer(t, srv, ""), plainLocker{t, srv}
	a, _ := p.take("k", cache.Exclusive)
	w := q.token()
	q.want(q.do(cache.OpJoin, cache.Exclusive, "k", w), cache.Queued)
	p.want(p.do(cache.OpRelease, 0, "k", a), cache.Done)
	if !f.lock("k", "foreign") {
		t.Fatal("it is not free")
	}
	q.want(q.do(cache.OpJoin, cache.Exclusive, "k", w), cache.Queued)
	if !f.unlock("k", "foreign") {
		t.Fatal("the plain locker lost its lock")
	}
	q.want(q.do(cache.OpJoin, cache.Exclusive, "k", w), cache.Granted)
}

func TestForeignDeletionIsALossForEitherMode(t *testing.T) {
	srv := testserver.StartRedis(t)
	p, f := newPeer(t, srv, ""), plainLocker{t, srv}
	for _, mode := range modes {
		tok, _ := p.take("k", mode)
		srv.Do("DEL", "lock:k")
		p.want(p.do(cache.OpRenew, mode, "k", tok), cache.NotHeld)
		if !f.lock("k", "foreign") {
			t.Fatal("it is not free")
		}
		p.want(p.do(cache.OpRenew, mode, "k", tok), cache.NotHeld)
		p.want(p.do(cache.OpDowngrade, mode, "k", tok), cache.NotHeld)
		p.want(p.do(cache.OpWithdraw, mode, "k", tok), cache.Done)
		if !f.unlock("k", "foreign") {
			t.Fatal("the plain locker lost its lock")
		}
		// Earlier readers are not present readers.
		next, _ := p.take("k", cache.Shared)
		p.want(p.do(cache.OpRenew, cache.Shared, "k", tok), cache.NotHeld)
		p.want(p.do(cache.OpRelease, cache.Shared, "k", next), cache.Done)
		p.want(p.do(cache.OpPeek, 0, "k", 0), cache.Done)
	}
}

func TestALockWithoutAnEndIsBusyForUnknownTime(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	srv.Do("SET", "lock:k", "x")
	for _, kind := range []cache.OpKind{cache.OpTry, cache.OpPeek} {
		r := p.do(kind, 0, "k", p.token())
		p.want(r, cache.Busy)
		if r.Left != -1 {
			t.Errorf("%v: there are %d ns left", kind, r.Left)
		}
	}
}

func TestDatabasesAndPrefixesAreApart(t *testing.T) {
	srv := testserver.StartRedis(t)
	for i, query := range []string{"", "db=1", "prefix=other:", "prefix="} {
		p := newPeer(t, srv, query)
		p.take("k", cache.Exclusive)
		if n := srv.Do("PUBSUB", "NUMSUB", "locksidecar:hint:"+p.Instance()).([]any)[1]; i == 0 &&
			n == nil {
			t.Error("nobody listens")
		}
	}
	p := newPeer(t, srv, "prefix=")
	p.want(p.do(cache.OpTry, 0, "lock:k", p.token()), cache.Busy)
	for _, key := range []string{"locksidecar:{}:fence", "locksidecar:", "locksidecar:x"} {
		p.want(p.do(cache.OpTry, 0, key, p.token()), cache.Refused)
	}
	p.take("locksidecar", cache.Exclusive)
	q := newPeer(t, srv, "prefix=locks")
	q.want(q.do(cache.OpTry, 0, "idecar:{}:fence", q.token()), cache.Refused)
	q.take("idecar;{}:fence", cache.Exclusive)
	if srv.Admin().Get(t.Context(), "locksidecar:{}:readers").Err() != goredis.Nil {
		t.Error("a sibling without a key")
	}
}
