package redlock_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redlock"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// list returns the locks of all pages.
func (p *peer) list(prefix string, limit int) (all []upstream.Lock) {
	p.Helper()
	for cursor := ""; ; {
		page, next, err := p.List(p.Context(), prefix, cursor, limit)
		if err != nil {
			p.Fatal(err)
		}
		if len(page) > limit {
			p.Errorf("a page of %d", len(page))
		}
		all = append(all, page...)
		if cursor = next; cursor == "" {
			return all
		}
	}
}

func TestAListSaysOnHowManyNodesEachHolderStands(t *testing.T) {
	c := start(t, 5)
	p := newPeer(t, c.url(patient), redlock.WithGrace(bound))
	q := newPeer(t, c.url(patient), redlock.WithGrace(bound))
	p.take("a:1", cache.Exclusive)
	q.take("a:2", cache.Shared)
	p.take("a:2", cache.Shared)
	for i := range 25 {
		p.take(fmt.Sprint("b:", i), cache.Exclusive)
	}
	c[0].Do("SET", "lock:a:3", "orphan", "PX", "60000") // of a locker that died after one node
	c[3].Do("DEL", "lock:a:1")
	for _, limit := range []int{1, 3, 1000} {
		locks := p.list("a:", limit)
		if len(locks) != 4 {
			t.Fatalf("there are %d: %+v", len(locks), locks)
		}
		for i, want := range []struct {
			key  string
			mode cache.Mode
			on   string
		}{{"a:1", cache.Exclusive, "(on 4 of 5 nodes)"}, {"a:2", cache.Shared, "(on 5 of 5 nodes)"},
			{"a:2", cache.Shared, "(on 5 of 5 nodes)"},
			{"a:3", cache.Exclusive, "orphan (on 1 of 5 nodes)"}} {
			x := locks[i]
			if x.Key != want.key || x.Mode != want.mode || !strings.HasSuffix(x.Holder, want.on) ||
				x.Foreign != (x.Key == "a:3") || x.Left <= 0 || x.Left > int64(long) ||
				x.Name != "lock:"+x.Key {
				t.Errorf("%+v, want %+v", x, want)
			}
		}
		if locks[1].Mine == locks[2].Mine || !locks[0].Mine || locks[3].Mine {
			t.Errorf("whose they are: %+v", locks)
		}
	}
	if n := len(p.list("", 7)); n != 29 {
		t.Errorf("there are %d in all", n)
	}
	c[4].Kill()
	if x := p.list("a:1", 10)[0]; !strings.HasSuffix(x.Holder, "(on 3 of 5 nodes, 1 silent)") {
		t.Errorf("%+v", x)
	}
	for _, s := range c[:4] {
		s.Kill()
	}
	if _, _, err := p.List(t.Context(), "", "", 10); err == nil ||
		!strings.Contains(err.Error(), c[0].Addr()) {
		t.Errorf("of no node at all: %v", err)
	}
}

// Connections to all nodes count, and a node that is gone has none.
func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	p := newPeer(t, c.url("max_ttl=1m"))
	p.take("k", cache.Exclusive)
	counted := func() bool {
		there := 0
		for _, s := range c {
			there += testserver.Connections(t, s.Addr())
		}
		return there >= 2 && p.Connections() == there
	}
	soon(t, "they are as many as the kernel says", counted)
	before := p.Connections()
	c[1].Kill()
	p.take("other", cache.Exclusive)
	soon(t, "they are fewer without a node", func() bool {
		return counted() && p.Connections() < before
	})
	s := p.Store
	p.end()
	if n := s.Connections(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}
