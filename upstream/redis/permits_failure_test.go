package redis_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestPermitsEndWithTheirServer(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	held := p.takePermits("k", 3, 3)
	last := p.allPermits(held, cache.OpTry, cache.Granted)[2].Base
	for _, end := range []func(){func() { srv.Kill(); srv.Start() }, func() { srv.Do("FLUSHALL") }} {
		end()
		p.eventually("the server is back", func() bool {
			return p.permit(cache.OpPeek, "k", 0, 0).Status == cache.Done
		})
		p.allPermits(held, cache.OpRenew, cache.NotHeld)
		p.allPermits(held, cache.OpRelease, cache.NotHeld)
		p.allPermits(held, cache.OpWithdraw, cache.Done)
		held = p.takePermits("k", 3, 3)
		for _, r := range p.allPermits(held, cache.OpTry, cache.Granted) {
			if r.Base <= last {
				t.Errorf("base %d after %d", r.Base, last)
			}
			last = r.Base
		}
	}
}

// Another request with the same tokens settles an unresolved request, whether it was carried out or
// not. No permit is lost.
func TestPermitsWhoseAnswersAreLost(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	p, q := newPeer(t, srv, "timeout=500ms"), newPeer(t, srv, "timeout=10s")
	// This is p with a longer timeout.
	sure := &peer{T: t, Store: open(t, srv, "timeout=10s", continuing(p.Instance()))}
	const limit = 4
	unknown := func(ops ...upstream.Op) {
		t.Helper()
		p.eventually("it is asked and not answered", func() bool {
			p.eventually("it has a connection", func() bool {
				return p.try(permitOp(cache.OpPeek, "x", 0, 0))[0].Status == cache.Done
			})
			srv.Pause()
			rs := p.try(ops...)
			srv.Resume() // it has all requests in its socket
			// This process stalled and sent nothing.
			if rs[0].Status == cache.Refused && rs[1].Status == cache.Refused {
				return false
			}
			p.want(rs[0], cache.Unknown)
			p.want(rs[1], cache.Unknown)
			return true
		})
	}
	free := func(want int) {
		t.Helper()
		var got []upstream.Op
		for range limit + 1 {
			op := permitOp(cache.OpTry, "k", limit, q.token())
			if q.apply(op)[0].Status == cache.Granted {
				got = append(got, op)
			}
		}
		if len(got) != want {
			t.Errorf("%d are free, not %d", len(got), want)
		}
		q.allPermits(got, cache.OpRelease, cache.Done)
	}
	a, b := permitOp(cache.OpTry, "k", limit, p.token()), permitOp(cache.OpJoin, "k", limit, p.token())
	unknown(a, b) // and they were carried out
	p.eventually("both stand", func() bool { return q.permit(cache.OpPeek, "k", 0, 0).Status == cache.Busy })
	free(limit - 2)
	sure.allPermits([]upstream.Op{a, b}, cache.OpTry, cache.Granted)
	free(limit - 2)
	end := []upstream.Op{permitOp(cache.OpRelease, "k", limit, a.Token),
		permitOp(cache.OpWithdraw, "k", limit, b.Token)}
	unknown(end...)
	p.eventually("both are gone", func() bool { return q.permit(cache.OpPeek, "k", 0, 0).Status == cache.Done })
	rs := sure.apply(end...)
	p.want(rs[0], cache.NotHeld)
	p.want(rs[1], cache.Done)
	free(limit)

	// These requests are not carried out, because the server ends with them in its socket.
	ops := []upstream.Op{permitOp(cache.OpTry, "k", limit, p.token()),
		permitOp(cache.OpJoin, "k", limit, p.token())}
	srv.Pause()
	done := make(chan []cache.Result)
	go func() { done <- p.try(ops...) }()
	runtime.Gosched()
	srv.Kill()
	for _, r := range <-done {
		if r.Status != cache.Unknown && r.Status != cache.Refused {
			t.Errorf("it is %v", r.Status)
		}
	}
	srv.Start()
	for _, x := range []*peer{q, sure} {
		x.eventually("the server is back", func() bool {
			return x.permit(cache.OpPeek, "k", 0, 0).Status == cache.Done
		})
	}
	free(limit)
	sure.allPermits(ops, cache.OpTry, cache.Granted)
	free(limit - 2)
}

// try is apply within the store's timeout.
func (p *peer) try(ops ...upstream.Op) []cache.Result {
	res := make([]cache.Result, len(ops))
	ctx, cancel := context.WithTimeout(context.Background(), p.Info().Timeout)
	defer cancel()
	_ = p.Apply(ctx, ops, res)
	return res
}

// A permit that no daemon knows any more becomes free when its TTL is over, although the semaphore
// is always in use.
func TestAnOrphanedPermitComesBack(t *testing.T) {
	srv := testserver.StartRedisFaketime(t)
	p, q, r := newPeer(t, srv, "waiter_lease=1m"), newPeer(t, srv, "waiter_lease=1m"),
		newPeer(t, srv, "waiter_lease=1m")
	r.listens(q)
	kept := p.takePermits("k", 3, 1)
	orphan := permitOp(cache.OpTry, "k", 3, p.token())
	orphan.TTL = long / 3
	p.allPermits([]upstream.Op{orphan}, cache.OpTry, cache.Granted)
	kept = append(kept, p.takePermits("k", 3, 1)...)
	w, v := r.joinPermits("k", 3, 1)[0], q.joinPermits("k", 3, 1)[0]
	srv.JumpClock(long / 2)
	// The next op finds it, and tells the first waiter.
	q.want(q.apply(v)[0], cache.Queued)
	if hs := r.heard(q); len(hs) == 0 || hs[len(hs)-1] != fmt.Sprint("free ", w.Token) {
		t.Errorf("it is told %v", hs)
	}
	r.want(r.apply(w)[0], cache.Granted)
	q.want(q.apply(v)[0], cache.Queued)
	p.want(p.permit(cache.OpRenew, "k", 3, orphan.Token), cache.NotHeld)
	p.want(p.permit(cache.OpRelease, "k", 3, orphan.Token), cache.NotHeld)
	p.allPermits(kept, cache.OpRenew, cache.Done)
}

// A permit ends at its TTL even if no other op checks it.
func TestAPermitThatIsOverIsNotHeld(t *testing.T) {
	srv := testserver.StartRedisFaketime(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "")
	now := time.Duration(0)
	for i, to := range []time.Duration{2 * time.Minute, 4 * time.Minute, -time.Hour, 24 * time.Hour} {
		key, ahead := fmt.Sprint("k", i), to-now
		now = to
		kept := permitOp(cache.OpTry, key, 3, p.token())
		kept.TTL = 48 * time.Hour
		p.allPermits([]upstream.Op{kept}, cache.OpTry, cache.Granted)
		a, b := p.takePermits(key, 3, 1)[0], p.takePermits(key, 3, 1)[0]
		srv.JumpClock(to)
		want, left := cache.NotHeld, 1
		if ahead < 0 {
			want, left = cache.Done, 2
		}
		p.allPermits([]upstream.Op{a}, cache.OpRenew, want)
		p.allPermits([]upstream.Op{b}, cache.OpRelease, want)
		p.allPermits([]upstream.Op{kept}, cache.OpRenew, cache.Done)
		if n := len(p.listAll(key, 10)); n != left {
			t.Errorf("jump %d: %d are listed", i, n)
		}
		q.takePermits(key, 3, 3-left)
		q.want(q.permit(cache.OpTry, key, 3, q.token()), cache.Busy)
	}
}

func TestOutOfMemoryKeepsPermits(t *testing.T) {
	srv := testserver.StartRedis(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "waiter_lease=1m")
	held := p.takePermits("k", 5, 5)
	w := q.joinPermits("k", 5, 1)[0]
	p.takePermits("other", 5, 1)
	srv.Do("CONFIG", "SET", "maxmemory", "1")
	for _, op := range []upstream.Op{w, permitOp(cache.OpTry, "k", 9, q.token()),
		permitOp(cache.OpJoin, "other", 5, q.token()), permitOp(cache.OpTry, "new", 5, q.token())} {
		r := q.apply(op)[0]
		q.want(r, cache.Refused)
		if !errors.Is(r.Err, redis.ErrRefused) || !strings.Contains(r.Err.Error(), "OOM") {
			t.Errorf("the reason is %v", r.Err)
		}
	}
	for _, r := range p.allPermits(held, cache.OpRenew, cache.Done) {
		if !r.Contended {
			t.Error("nobody waits")
		}
	}
	held[0].Rebase = true
	if r := p.allPermits(held[:1], cache.OpRenew, cache.Done)[0]; r.Base == 0 {
		t.Error("there is no new base")
	}
	p.want(p.permit(cache.OpPeek, "k", 5, 0), cache.Busy)
	p.allPermits(held, cache.OpRelease, cache.Done)
	q.allPermits([]upstream.Op{w}, cache.OpWithdraw, cache.Done)
	srv.Do("CONFIG", "SET", "maxmemory", "0")
	q.takePermits("k", 5, 5)
}

func TestPermitsThatNoReplicaHas(t *testing.T) {
	t.Parallel()
	master, replica := pair(t)
	p, q := newPeer(t, master, "wait_replicas=1&wait_timeout=9s&timeout=10s"), newPeer(t, master, "")
	held := p.takePermits("k", 4, 2)
	replica.Pause()
	p = p.impatient(master)
	asked := permitOp(cache.OpTry, "k", 4, p.token())
	for _, op := range []upstream.Op{asked, permitOp(cache.OpRenew, "k", 4, held[0].Token)} {
		r := p.apply(op)[0]
		p.want(r, cache.Unknown)
		if !errors.Is(r.Err, redis.ErrAcks) || r.Base != 0 {
			t.Errorf("base %d, the reason is %v", r.Base, r.Err)
		}
	}
	q.takePermits("k", 4, 1)
	p.want(p.permit(cache.OpTry, "k", 4, p.token()), cache.Busy) // the release was carried out
	p.allPermits(held[1:], cache.OpRelease, cache.Done)
	replica.Resume()
	p.eventually("the replica follows again", func() bool {
		return p.apply(asked)[0].Status == cache.Granted
	})
	if n := replica.Admin().ZCard(t.Context(), "locksidecar:{}:permits:lock:k").Val(); n != 3 {
		t.Errorf("the replica has %d permits", n)
	}
}

func TestFlushedScriptsOfPermitsAreNotNoticed(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	held := p.takePermits("k", 5, 2)
	srv.Do("SCRIPT", "FLUSH")
	rs := p.apply(permitOp(cache.OpPeek, "k", 0, 0), permitOp(cache.OpTry, "k", 5, p.token()),
		permitOp(cache.OpRelease, "k", 5, held[0].Token),
		permitOp(cache.OpRenew, "k", 5, held[1].Token),
		upstream.Op{Kind: cache.OpTry, Key: "k", Token: p.token(), TTL: long})
	for i, want := range []cache.Status{cache.Busy, cache.Granted, cache.Done, cache.Done,
		cache.Granted} {
		p.want(rs[i], want)
	}
}

func TestHoldersKeepTheirPermitsWhileTheSlotIsOnItsWay(t *testing.T) {
	t.Parallel()
	h := begin(t)
	p, q := onCluster(t, h.RedisCluster, "timeout=5s&waiter_lease=1m"),
		onCluster(t, h.RedisCluster, "timeout=5s&waiter_lease=1m")
	held := p.takePermits("{t}k", 4, 4)
	gone := p.takePermits("{t}gone", 4, 2)
	free := p.takePermits("{t}free", 4, 1)
	w := q.joinPermits("{t}k", 4, 1)[0]
	kinds := []string{"permits:lock:{t}k", "permits:lock:{t}gone", "permitqueue:", "permithosts:"}
	set := func(kind string) string { return h.sibling(t, kind) }
	names := []any{}
	for _, k := range kinds {
		names = append(names, set(k))
	}
	h.start()
	for i := range len(names) + 1 {
		p.allPermits(held, cache.OpRenew, cache.Done)
		for _, op := range []upstream.Op{w, permitOp(cache.OpTry, "{t}k", 4, q.token()),
			permitOp(cache.OpTry, "{t}free", 4, q.token()),
			permitOp(cache.OpJoin, "{t}none", 4, q.token())} {
			st := q.apply(op)[0].Status
			if ok := st == cache.Refused || i == 0 && st != cache.Unknown; !ok {
				t.Errorf("with %d moved, %v of %s is %v", i, op.Kind, op.Key, st)
			}
		}
		if i < len(names) {
			h.MoveKeys(h.slot, h.from, h.to, names[i])
		}
	}
	p.allPermits(gone[:1], cache.OpRelease, cache.Done)
	// The token could be queued.
	p.want(p.apply(permitOp(cache.OpRelease, "{t}gone", 4, gone[0].Token))[0], cache.Refused)
	p.want(p.apply(permitOp(cache.OpRenew, "{t}gone", 4, gone[0].Token))[0], cache.NotHeld)
	h.MoveKeys(h.slot, h.from, h.to)
	h.EndMove(h.slot, h.from, h.to)
	p.allPermits(gone[:1], cache.OpRelease, cache.NotHeld)
	p.allPermits(gone[1:], cache.OpRenew, cache.Done)
	p.allPermits(free, cache.OpRenew, cache.Done)
	q.want(q.permit(cache.OpTry, "{t}k", 4, q.token()), cache.Busy)
	q.want(q.apply(w)[0], cache.Queued)
	p.allPermits(held[:1], cache.OpRelease, cache.Done)
	q.want(q.apply(w)[0], cache.Granted)
	p.takePermits("{t}none", 4, 4)
}
