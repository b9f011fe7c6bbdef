package redis_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// listAll returns the locks of all pages.
func (p *peer) listAll(prefix string, limit int) (all []upstream.Lock) {
	p.Helper()
	cursor := ""
	for range 100_000 {
		locks, next, err := p.List(p.Context(), prefix, cursor, limit)
		if err != nil {
			p.Fatal(err)
		}
		if len(locks) > limit {
			p.Fatalf("%d locks on a page of %d", len(locks), limit)
		}
		all = append(all, locks...)
		if next == "" {
			slices.SortFunc(all, func(a, b upstream.Lock) int {
				return strings.Compare(a.Key+a.Holder, b.Key+b.Holder)
			})
			return all
		}
		if next == cursor && len(locks) == 0 {
			p.Fatal("the list stands still")
		}
		cursor = next
	}
	p.Fatal("the list does not end")
	return nil
}

func onBoth(t *testing.T, f func(t *testing.T, url string, do func(name string, args ...any))) {
	t.Run("standalone", func(t *testing.T) {
		srv := testserver.StartRedis(t)
		f(t, srv.URL(), func(_ string, args ...any) { srv.Do(args...) })
	})
	t.Run("cluster", func(t *testing.T) {
		c := testserver.StartRedisCluster(t, 3, 0)
		f(t, c.URL(), func(name string, args ...any) { c.Owner(c.Slot(name)).Do(args...) })
	})
}

func TestListShowsHoldersReadersWaitersAndForeignOnes(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, url string, do func(string, ...any)) {
		url += "?waiter_lease=1m" // the test may take long
		p, q := &peer{T: t, Store: openStore(t, url)}, &peer{T: t, Store: openStore(t, url)}
		p.take("x", cache.Exclusive)
		q.take("xx", cache.Exclusive)
		p.take("xs", cache.Shared)
		q.take("xs", cache.Shared)
		q.want(q.do(cache.OpJoin, cache.Exclusive, "x", q.token()), cache.Queued)
		do("lock:xf", "SET", "lock:xf", "somebody", "PX", 60000)
		do("lock:xh", "HSET", "lock:xh", "a", "b")
		do("lock:xl", "SET", "lock:xl", strings.Repeat("ä", 100))
		do("lock:[x]", "SET", "lock:[x]", "x")
		do("other:x", "SET", "other:x", "x")
		p.take("y", cache.Exclusive)
		for _, limit := range []int{1, 2, 3, 100} {
			got := p.listAll("x", limit)
			var text []string
			for _, l := range got {
				if l.Foreign && l.Left != -1 || !l.Foreign {
					if l.Left <= 0 || l.Left > int64(long) {
						t.Errorf("%s has %d left", l.Key, l.Left)
					}
				}
				holder := strings.NewReplacer(p.Instance(), "p", q.Instance(), "q").Replace(l.Holder)
				text = append(text, fmt.Sprintf("%s %s %v %s mine=%v foreign=%v left=%v waiters=%d", l.Key,
					l.Name, l.Mode, holder, l.Mine, l.Foreign, l.Left >= 0, l.Waiters))
			}
			slices.Sort(text)
			want := []string{
				"x lock:x exclusive p mine=true foreign=false left=true waiters=1",
				"xf lock:xf exclusive somebody mine=false foreign=true left=true waiters=0",
				"xh lock:xh exclusive a hash mine=false foreign=true left=false waiters=0",
				"xl lock:xl exclusive " + strings.Repeat("ä",
					64) + "… mine=false foreign=true left=false waiters=0",
				"xs lock:xs shared p mine=true foreign=false left=true waiters=0",
				"xs lock:xs shared q mine=false foreign=false left=true waiters=0",
				"xx lock:xx exclusive q mine=false foreign=false left=true waiters=0",
			}
			if !slices.Equal(text, want) {
				t.Errorf("limit %d:\n%s\nnot\n%s", limit, strings.Join(text, "\n"), strings.Join(want, "\n"))
			}
		}
		if got := p.listAll("[x]", 10); len(got) != 1 || got[0].Key != "[x]" {
			t.Errorf("a prefix with special characters: %v", got)
		}
		if got := p.listAll("none", 10); len(got) != 0 {
			t.Errorf("there is %v", got)
		}
	})
}

func TestListFindsAllOfManyAndShowsNoSiblings(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, url string, _ func(string, ...any)) {
		p := &peer{T: t, Store: openStore(t, url+"?prefix=&timeout=10s")}
		const n = 1500
		for from := 0; from < n; from += upstream.MaxBatch {
			var ops []upstream.Op
			for i := from; i < min(n, from+upstream.MaxBatch); i++ {
				ops = append(ops, upstream.Op{Kind: cache.OpTry, Mode: cache.Mode(i % 2), Key: strconv.Itoa(i),
					Token: p.token(), TTL: time.Hour})
			}
			res := make([]cache.Result, len(ops))
			if err := p.Apply(t.Context(), ops, res); err != nil {
				t.Fatal(err)
			}
		}
		for _, limit := range []int{37, 1000} {
			seen := map[string]bool{}
			for _, l := range p.listAll("", limit) {
				seen[l.Key] = true
			}
			if len(seen) != n {
				t.Errorf("limit %d: %d of %d locks", limit, len(seen), n)
			}
		}
	})
}

func TestListRefusesWhatItCannotDo(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	for _, c := range []string{"x", "1", `{"Skip":-1}`} {
		if _, _, err := p.List(t.Context(), "", c, 10); err == nil {
			t.Errorf("cursor %q is accepted", c)
		}
	}
	if _, _, err := p.List(t.Context(), "", "", 0); err == nil {
		t.Error("limit 0 is accepted")
	}
	srv.Kill()
	if _, _, err := p.List(t.Context(), "", "", 10); err == nil ||
		!strings.Contains(err.Error(), srv.Addr()) {
		t.Errorf("without a server: %v", err)
	}
}

var _ upstream.Lister = (*redis.Store)(nil)

// A client returns a cursor of up to 4096 bytes. Long names have to fit, too.
func TestCursorsAreShort(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, url string, _ func(string, ...any)) {
		p := &peer{T: t, Store: openStore(t, url+"?prefix=&timeout=10s")}
		const n = 100
		for i := range n {
			p.take(fmt.Sprintf("%0500d", i), cache.Exclusive)
		}
		seen, cursor := map[string]bool{}, ""
		for range 1000 {
			locks, next, err := p.List(t.Context(), "", cursor, 7)
			if err != nil {
				t.Fatal(err)
			}
			for i := range locks {
				seen[locks[i].Key] = true
			}
			if cursor = next; len(cursor) > 4000 {
				t.Fatalf("a cursor of %d bytes", len(cursor))
			}
			if cursor == "" {
				break
			}
		}
		if len(seen) != n || cursor != "" {
			t.Errorf("%d of %d locks", len(seen), n)
		}
	})
}
