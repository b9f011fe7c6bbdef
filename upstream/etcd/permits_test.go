package etcd_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

const heldDir, queueDir = dir + "%permit/held/", dir + "%permit/queue/"

func permitOp(kind cache.OpKind, limit int, key string, token uint64) upstream.Op {
	return upstream.Op{Kind: kind, Mode: cache.Permit, Limit: uint32(limit), Key: key,
		Token: token, TTL: long}
}

func (p *peer) permit(kind cache.OpKind, limit int, key string, token uint64) cache.Result {
	res, _ := p.apply(permitOp(kind, limit, key, token))
	return res[0]
}

// takePermit is a try that must succeed.
func (p *peer) takePermit(limit int, key string) uint64 {
	p.Helper()
	t := p.token()
	p.want(p.permit(cache.OpTry, limit, key, t), cache.Granted)
	return t
}

// hintedPermit waits for a hint about a token of a semaphore, or all of them.
func (p *peer) hintedPermit(kind cache.HintKind, key string, token uint64) {
	p.Helper()
	for end := time.After(bound); ; {
		select {
		case h := <-p.Hints():
			if h.Kind == kind && h.Mode == cache.Permit && h.Key == key &&
				(h.Token == token || h.Token == 0) {
				return
			}
		case <-end:
			p.Fatalf("no hint %d comes of %s", kind, key)
		}
	}
}

func standing(t testing.TB, srv *testserver.Etcd, prefix string) int {
	t.Helper()
	n := 0
	for _, k := range keys(t, srv.Admin()) {
		if strings.HasPrefix(k, prefix) {
			n++
		}
	}
	return n
}

// A sweep removes a permit whose daemon does not ask again, and also a place in the queue.
func TestSweepOfPermits(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "")
	kept := p.takePermit(4, "a/b")
	for range 3 {
		p.takePermit(4, "a/b")
	}
	p.want(p.permit(cache.OpJoin, 4, "a/b", p.token()), cache.Queued)
	theirs := q.token()
	q.want(q.permit(cache.OpJoin, 4, "a/b", theirs), cache.Queued)
	known := func(key string, token uint64) bool { return key == "a/b" && token == kept }
	if n, err := p.Sweep(t.Context(), known); n != 4 || err != nil {
		t.Errorf("%d removed, %v", n, err)
	}
	if n, err := p.Sweep(t.Context(), known); n != 0 || err != nil {
		t.Errorf("%d removed, %v", n, err)
	}
	p.want(p.permit(cache.OpRenew, 0, "a/b", kept), cache.Done)
	q.hintedPermit(cache.HintAvailable, "a/b", theirs)
	q.want(q.permit(cache.OpJoin, 4, "a/b", theirs), cache.Granted)
	q.takePermit(4, "a/b")
	p.takePermit(4, "a/b")
	q.want(q.permit(cache.OpTry, 4, "a/b", q.token()), cache.Busy)
}

// A permit that becomes free wakes the first waiter, whose departure wakes the next. Waiters behind
// these get no hint.
func TestPermitWakesOne(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "ttl=30s")
	held := p.takePermit(2, "k")
	p.takePermit(2, "k")
	var qs []*peer
	var tokens []uint64
	for i := range 4 {
		q := newPeer(t, srv, "ttl=30s")
		qs, tokens = append(qs, q), append(tokens, q.token())
		q.want(q.permit(cache.OpJoin, 2, "k", tokens[i]), cache.Queued)
	}
	p.hintedPermit(cache.HintContended, "k", 0)
	p.want(p.permit(cache.OpRelease, 0, "k", held), cache.Done)
	qs[0].hintedPermit(cache.HintAvailable, "k", tokens[0])
	qs[0].want(qs[0].permit(cache.OpJoin, 2, "k", tokens[0]), cache.Granted)
	qs[1].hintedPermit(cache.HintAvailable, "k", tokens[1])
	qs[1].want(qs[1].permit(cache.OpJoin, 2, "k", tokens[1]), cache.Queued)
	for i := 2; i < 4; i++ {
		if n := len(qs[i].Hints()); n != 0 {
			t.Errorf("%d hints for number %d", n, i)
		}
	}
	// The end of any permit wakes the next token.
	qs[0].want(qs[0].permit(cache.OpRelease, 0, "k", tokens[0]), cache.Done)
	qs[1].hintedPermit(cache.HintAvailable, "k", tokens[1])
	qs[1].want(qs[1].permit(cache.OpJoin, 2, "k", tokens[1]), cache.Granted)
}

// manyPermits carries out full batches on one large semaphore.
func manyPermits(t *testing.T, srv *testserver.Etcd, limit int) {
	t.Helper()
	p, q := newPeer(t, srv, "timeout=20s&ttl=30s"), newPeer(t, srv, "timeout=20s&ttl=30s")
	bases, held := map[uint64]bool{}, map[*peer][]uint64{}
	each := func(x *peer, kind cache.OpKind, tokens []uint64, ok func(cache.Result) bool) {
		t.Helper()
		for part := range slices.Chunk(tokens, upstream.MaxBatch) {
			var ops []upstream.Op
			for _, tok := range part {
				ops = append(ops, permitOp(kind, limit, "k", tok))
			}
			res, err := x.apply(ops...)
			for _, r := range res {
				if !ok(r) {
					t.Fatalf("%v is %v (%v); %v", kind, r.Status, r.Err, err)
				}
			}
		}
	}
	some := func(x *peer, n int) (tokens []uint64) {
		for range n {
			tokens = append(tokens, x.token())
		}
		return tokens
	}
	is := func(st cache.Status) func(cache.Result) bool {
		return func(r cache.Result) bool { return r.Status == st }
	}
	for _, x := range []*peer{p, q} {
		held[x] = some(x, limit/2)
		each(x, cache.OpTry, held[x], func(r cache.Result) bool {
			bases[r.Base] = true
			return r.Status == cache.Granted
		})
	}
	if len(bases) != limit {
		t.Fatalf("%d bases for %d permits", len(bases), limit)
	}
	each(p, cache.OpTry, some(p, 50), is(cache.Busy))
	each(p, cache.OpTry, held[p], is(cache.Granted))
	waits := some(q, limit/2)
	each(q, cache.OpJoin, waits, is(cache.Queued))
	each(q, cache.OpJoin, waits, is(cache.Queued))
	each(p, cache.OpRenew, held[p], func(r cache.Result) bool {
		return r.Status == cache.Done && r.Contended
	})
	each(p, cache.OpRelease, held[p], is(cache.Done))
	free := map[uint64]bool{}
	for end := time.After(bound); len(free) < len(waits); {
		select {
		case h := <-q.Hints(): // each token that is woken repeats its join, as in a daemon
			if h.Kind != cache.HintAvailable || free[h.Token] {
				continue
			}
			ops := []upstream.Op{permitOp(cache.OpJoin, limit, "k", h.Token)}
			for len(q.Hints()) > 0 && len(ops) < upstream.MaxBatch {
				if h := <-q.Hints(); h.Kind == cache.HintAvailable && !free[h.Token] &&
					!slices.ContainsFunc(ops, func(o upstream.Op) bool { return o.Token == h.Token }) {
					ops = append(ops, permitOp(cache.OpJoin, limit, "k", h.Token))
				}
			}
			res, _ := q.apply(ops...)
			for i, r := range res {
				if r.Status == cache.Granted {
					free[ops[i].Token] = true
				}
			}
		case <-end:
			t.Fatalf("%d of %d hear of it", len(free), len(waits))
		}
	}
	each(p, cache.OpTry, some(p, 10), is(cache.Busy))
	each(q, cache.OpRelease, slices.Collect(maps.Keys(free)), is(cache.Done))
	each(q, cache.OpRelease, held[q], is(cache.Done))
	if ks := keys(t, srv.Admin()); len(ks) != 0 {
		t.Errorf("%d left: %q", len(ks), ks[0])
	}
}

func TestManyPermits(t *testing.T) {
	t.Parallel()
	manyPermits(t, testserver.StartEtcd(t), 1000)
}

func TestPermitsOnAServerThatTakesFewOperations(t *testing.T) {
	t.Parallel()
	manyPermits(t, testserver.StartEtcd(t, "--max-txn-ops=8"), 60)
}

func TestListOfPermits(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "")
	names := []string{"a", "a/b", "a%2Fb", "%permit", "%", "/", "held", "b"}
	for _, n := range names {
		p.takePermit(2, n)
		q.takePermit(2, n)
		q.want(q.permit(cache.OpJoin, 2, n, q.token()), cache.Queued)
		p.take(n, cache.Exclusive)
	}
	for _, prefix := range []string{"", "a"} {
		for _, limit := range []int{1, 3, 100} {
			locks, mine, all := map[string]int{}, map[string]int{}, map[string]int{}
			for cursor := ""; ; {
				page, next, err := p.List(t.Context(), prefix, cursor, limit)
				if err != nil || len(page) > limit {
					t.Fatal(page, err)
				}
				for _, l := range page {
					if l.Mode != cache.Permit {
						locks[l.Key]++
						continue
					}
					all[l.Key]++
					if l.Mine {
						mine[l.Key]++
					}
					if l.Foreign || l.Waiters != 1 || l.Base == 0 || l.Left <= 0 ||
						!strings.HasPrefix(l.Name, heldDir) {
						t.Errorf("%+v", l)
					}
				}
				if cursor = next; next == "" {
					break
				}
			}
			for _, n := range names {
				want := 1
				if !strings.HasPrefix(n, prefix) {
					want = 0
				}
				if locks[n] != want || mine[n] != want || all[n] != 2*want {
					t.Errorf("prefix %q, pages of %d: %q is there %d times as a lock, %d as ours, %d in all",
						prefix, limit, n, locks[n], mine[n], all[n])
				}
			}
		}
	}
}
