package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func listAll(p *peer, prefix string, limit int) map[string]upstream.Lock {
	p.Helper()
	all := map[string]upstream.Lock{}
	for cursor, pages := "", 0; ; pages++ {
		locks, next, err := p.List(p.Context(), prefix, cursor, limit)
		if err != nil || len(locks) > limit || pages > 1000 {
			p.Fatalf("page %d: %d locks, error %v", pages, len(locks), err)
		}
		for _, l := range locks {
			if _, ok := all[l.Key]; ok {
				p.Errorf("%s is there twice", l.Key)
			}
			all[l.Key] = l
		}
		if next == "" {
			return all
		}
		cursor = next
	}
}

func TestListShowsAllHostsLocks(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	url := srv.URL() + "?prefix=p%25_&waiter_lease=1m" // the test may take long
	p, q := newPeer(t, url), newPeer(t, url)
	other := newPeer(t, srv.URL()+"?prefix=q")
	other.take("elsewhere", cache.Exclusive)
	_, base := p.take("x:a", cache.Exclusive)
	q.take("x:b", cache.Shared)
	p.take("x:b", cache.Shared)
	q.want(q.do(cache.OpJoin, cache.Exclusive, "x:a", q.token()), cache.Queued)
	gone, _ := q.take("x:c", cache.Exclusive)
	q.want(q.do(cache.OpRelease, 0, "x:c", gone), cache.Done)
	q.take("y", cache.Exclusive)

	all := listAll(p, "", 2)
	if len(all) != 3 {
		t.Errorf("there are %v", all)
	}
	a := all["x:a"]
	if a.Mode != cache.Exclusive || !a.Mine || a.Foreign || a.Left <= 0 || a.Left > int64(long) ||
		a.Waiters != 1 || a.Base != base ||
		a.Holder != p.Instance() || !strings.Contains(a.Name, "locks.locksidecar") {
		t.Errorf("x:a is %+v", a)
	}
	if b := all["x:b"]; b.Mode != cache.Shared || !b.Mine || b.Waiters != 0 ||
		!strings.Contains(b.Holder, q.Instance()) {
		t.Errorf("x:b is %+v", b)
	}
	if all["y"].Mine {
		t.Error("y is not mine")
	}
	if some := listAll(p, "x:", 10); len(some) != 2 {
		t.Errorf("with x: there are %v", some)
	}
	if none := listAll(p, "%", 10); len(none) != 0 {
		t.Errorf("with a wildcard there are %v", none)
	}
	// There are more rows than one page reads, and most are free.
	for i := range 10 {
		ops := make([]upstream.Op, 256)
		for j := range ops {
			ops[j] = upstream.Op{Kind: cache.OpTry, Key: fmt.Sprintf("many:%d", i*256+j),
				Token: p.token(), TTL: long}
		}
		p.apply(ops...)
		for j := range ops {
			ops[j].Kind = cache.OpRelease
		}
		if i != 7 {
			p.apply(ops...)
		}
	}
	if many := listAll(p, "many:", 100); len(many) != 256 {
		t.Errorf("there are %d", len(many))
	}
}
