package etcd_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// everything runs full batches of all kinds.
func everything(t *testing.T, p *peer, name func(int) string) {
	t.Helper()
	all := func(kind cache.OpKind, mode cache.Mode, want cache.Status) []upstream.Op {
		t.Helper()
		ops := make([]upstream.Op, upstream.MaxBatch)
		for i := range ops {
			ops[i] = upstream.Op{Kind: kind, Mode: mode, Key: name(i), Token: uint64(1000 + i), TTL: long}
		}
		res, err := p.apply(ops...)
		for i, r := range res {
			if r.Status != want {
				t.Fatalf("%v of %s is %v (%v), not %v; %v", kind, ops[i].Key, r.Status, r.Err, want, err)
			}
		}
		return ops
	}
	all(cache.OpTry, cache.Exclusive, cache.Granted)
	all(cache.OpTry, cache.Exclusive, cache.Granted)
	all(cache.OpRenew, cache.Exclusive, cache.Done)
	all(cache.OpPeek, 0, cache.Busy)
	all(cache.OpDowngrade, cache.Shared, cache.Done)
	all(cache.OpRenew, cache.Shared, cache.Done)
	all(cache.OpRelease, cache.Shared, cache.Done)
	all(cache.OpJoin, cache.Shared, cache.Granted)
	all(cache.OpWithdraw, cache.Shared, cache.Done)
	all(cache.OpRelease, cache.Shared, cache.NotHeld)
	all(cache.OpPeek, 0, cache.Done)
}

func TestServerThatTakesFewOperations(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t, "--max-txn-ops=8")
	everything(t, newPeer(t, srv, "timeout=20s"), func(i int) string { return fmt.Sprint("k", i) })
	srv = testserver.StartEtcd(t, "--max-txn-ops=3")
	p := newPeer(t, srv, "")
	if r := p.do(cache.OpTry, cache.Shared, "k", p.token()); r.Status != cache.Refused ||
		!strings.Contains(r.Err.Error(), "--max-txn-ops") {
		t.Errorf("it is %v (%v)", r.Status, r.Err)
	}
}

func TestLongNames(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t, "--max-request-bytes=100000")
	everything(t, newPeer(t, srv, "timeout=20s"), func(i int) string {
		return strings.Repeat("/", 509) + fmt.Sprintf("%03d", i)
	})
}

func TestNamesDoNotMeet(t *testing.T) {
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "")
	names := []string{"a", "a/b", "a%2Fb", "a%b", "a%25b", "%", "/", "//", "%session", "%session/1",
		"a0", "a/", "A"}
	for _, n := range names {
		p.take(n, cache.Exclusive)
	}
	if ks := keys(t, srv.Admin()); len(ks) != len(names) {
		t.Errorf("the keys are %q", ks)
	}
	locks, next, err := p.List(t.Context(), "", "", 100)
	if err != nil || next != "" || len(locks) != len(names) {
		t.Fatal(locks, next, err)
	}
	seen := map[string]bool{}
	for _, l := range locks {
		seen[l.Key] = true
	}
	for _, n := range names {
		if !seen[n] {
			t.Errorf("%q is not listed", n)
		}
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, q := newPeer(t, srv, "timeout=10s"), newPeer(t, srv, "timeout=10s")
	var ops []upstream.Op
	for i := range 200 {
		ops = append(ops, upstream.Op{Kind: cache.OpTry, Mode: cache.Mode(i % 2),
			Key: fmt.Sprintf("k/%03d", i), Token: uint64(i + 1), TTL: long})
	}
	if _, err := p.apply(ops...); err != nil {
		t.Fatal(err)
	}
	p.last = 1000
	for i := range ops { // writers queue everywhere
		ops[i].Kind, ops[i].Mode = cache.OpJoin, cache.Exclusive
	}
	if _, err := q.apply(ops...); err != nil {
		t.Fatal(err)
	}
	p.take("other", cache.Exclusive)
	for _, limit := range []int{1, 7, 200, 1000} {
		var got []upstream.Lock
		for cursor := ""; ; {
			locks, next, err := p.List(t.Context(), "k/", cursor, limit)
			if err != nil || len(locks) > limit {
				t.Fatal(len(locks), err)
			}
			got = append(got, locks...)
			if cursor = next; next == "" {
				break
			}
		}
		if len(got) != 200 {
			t.Fatalf("pages of %d have %d locks", limit, len(got))
		}
		for i, l := range got {
			if l.Key != fmt.Sprintf("k/%03d", i) || l.Mode != cache.Mode(i%2) || !l.Mine || l.Foreign ||
				l.Waiters != 1 || l.Base == 0 {
				t.Fatalf("lock %d is %+v", i, l)
			}
		}
		if l := got[0]; l.Left <= 0 || !strings.HasPrefix(l.Holder, "lease ") ||
			!strings.HasPrefix(l.Name, dir+"k%2F000/") {
			t.Errorf("the first is %+v", l)
		}
	}
	if locks, _, err := q.List(t.Context(), "other", "", 5); err != nil || len(locks) != 1 ||
		locks[0].Mine {
		t.Errorf("%+v, %v", locks, err)
	}
	if _, _, err := p.List(t.Context(), "", "elsewhere", 5); err == nil {
		t.Error("a cursor of something else is taken")
	}
}

// One lock's queue may be longer than a page.
func TestListOfALongQueue(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "timeout=10s")
	for i := range 15 {
		var puts []clientv3.Op
		for j := range 100 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("%sk/%04d", dir, 100*i+j), ""))
		}
		if _, err := srv.Admin().Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	p.take("l", cache.Exclusive)
	locks, next, err := p.List(t.Context(), "", "", 10)
	if err != nil || next != "" || len(locks) != 2 || locks[0].Waiters != 1499 || !locks[0].Foreign ||
		locks[1].Key != "l" {
		t.Errorf("%+v, %q, %v", locks, next, err)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "")
	var kept []uint64
	for i := range 300 {
		mode := cache.Mode(i % 2)
		tok, _ := p.take(fmt.Sprint("a/", i), mode)
		if i%3 == 0 {
			kept = append(kept, tok)
		}
	}
	theirs, _ := q.take("b", cache.Exclusive)
	place := p.token()
	p.want(p.do(cache.OpJoin, cache.Exclusive, "b", place), cache.Queued)
	known := func(key string, token uint64) bool {
		return key == fmt.Sprint("a/", token-1) && (token-1)%3 == 0
	}
	n, err := p.Sweep(t.Context(), known)
	if err != nil || n != 201 {
		t.Errorf("%d removed, %v", n, err)
	}
	if n, err := p.Sweep(t.Context(), known); n != 0 || err != nil {
		t.Errorf("%d removed, %v", n, err)
	}
	for _, tok := range kept {
		p.want(p.do(cache.OpRelease, cache.Exclusive, fmt.Sprint("a/", tok-1), tok), cache.Done)
	}
	if r := q.do(cache.OpRenew, cache.Exclusive, "b", theirs); r.Status != cache.Done || r.Contended {
		t.Errorf("it is %v, wanted %v", r.Status, r.Contended)
	}
	if ks := keys(t, srv.Admin()); len(ks) != 1 {
		t.Errorf("left: %q", ks)
	}
}

// Each of many waiters gets the hint for its own key, even if all watches were made again
// meanwhile.
func TestManyWait(t *testing.T) {
	t.Parallel()
	const n = 1000
	srv := testserver.StartEtcd(t)
	p, q := newPeer(t, srv, "timeout=20s&ttl=30s"), newPeer(t, srv, "timeout=20s&ttl=30s")
	each := func(x *peer, kind cache.OpKind, want cache.Status) {
		t.Helper()
		for i := 0; i < n; {
			var ops []upstream.Op
			for ; i < n && len(ops) < upstream.MaxBatch; i++ {
				ops = append(ops, upstream.Op{Kind: kind, Key: fmt.Sprint("k", i),
					Token: uint64(i + 1), TTL: long})
			}
			res, err := x.apply(ops...)
			for _, r := range res {
				if r.Status != want {
					t.Fatalf("%v is %v (%v); %v", kind, r.Status, r.Err, err)
				}
			}
		}
	}
	each(p, cache.OpTry, cache.Granted)
	each(q, cache.OpJoin, cache.Queued)
	srv.Restart()
	p.eventually("the server is back", func() bool {
		return p.Ping(t.Context()) == nil && q.Ping(t.Context()) == nil
	})
	each(p, cache.OpRelease, cache.Done)
	free := map[string]bool{}
	for end := time.After(bound); len(free) < n; {
		select {
		case h := <-q.Hints():
			if h.Kind == cache.HintAvailable {
				free[h.Key] = true
			}
		case <-end:
			t.Fatalf("%d of %d hear of it", len(free), n)
		}
	}
	each(q, cache.OpJoin, cache.Granted)
}
