package zookeeper_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

func TestListKnowsWhatTheStoreKnows(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p, q := newPeer(t, srv.URL()+"/l"), newPeer(t, srv.URL()+"/l")
	_, base := p.take("mine/1", cache.Exclusive)
	q.want(q.join("mine/1", q.token()), cache.Queued)
	q.take("other", cache.Shared)
	p.take("other", cache.Shared)
	d, _ := p.take("down", cache.Exclusive)
	p.want(p.do(cache.OpDowngrade, 0, "down", d), cache.Done)
	l := zk.NewLock(srv.Client(t), "/l/foreign", zk.WorldACL(zk.PermAll))
	if err := l.Lock(); err != nil {
		t.Fatal(err)
	}
	f, _ := p.take("free", cache.Exclusive)
	p.want(p.release("free", f), cache.Done)

	all := map[string]upstream.Lock{}
	cursor := ""
	for pages := 0; ; pages++ {
		locks, next, err := p.List(t.Context(), "", cursor, 2)
		if err != nil || len(locks) > 2 || pages > 3 {
			t.Fatal(locks, err, pages)
		}
		for _, l := range locks {
			all[l.Key] = l
		}
		if next == "" {
			break
		}
		cursor = next
	}
	for key, want := range map[string]upstream.Lock{
		"mine/1":  {Mode: cache.Exclusive, Mine: true, Waiters: 1, Base: base, Name: "/l/mine%2F1"},
		"other":   {Mode: cache.Shared, Waiters: 0, Name: "/l/other"},
		"down":    {Mode: cache.Shared, Mine: true, Name: "/l/down"},
		"foreign": {Mode: cache.Exclusive, Foreign: true, Name: "/l/foreign"},
	} {
		got, ok := all[key]
		if !ok || got.Mode != want.Mode || got.Mine != want.Mine || got.Foreign != want.Foreign ||
			got.Waiters != want.Waiters || got.Name != want.Name ||
			want.Base != 0 && got.Base != want.Base || got.Base == 0 || got.Left != -1 ||
			!strings.HasPrefix(got.Holder, "session 0x") {
			t.Errorf("%s is %+v (there %v)", key, got, ok)
		}
	}
	if len(all) != 4 {
		t.Errorf("there are %d locks: %v", len(all), all)
	}
	if locks, next, err := p.List(t.Context(), "mine/", "", 10); err != nil ||
		len(locks) != 1 || next != "" {
		t.Error(locks, next, err)
	}
}

// A long answer does not use the connection of the locks.
func TestListOfManyLongNames(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, "zookeeper://u:s3cret@"+srv.Addr()+"/l?session=30s&timeout=10s")
	last := strings.Repeat("z", 400)
	held, _ := p.take("held", cache.Exclusive)
	p.take(last, cache.Exclusive)
	no := p.want(p.renew("held", held), cache.Done).SessionNo
	c := srv.Client(t)
	if err := c.AddAuth("digest", []byte("u:s3cret")); err != nil {
		t.Fatal(err)
	}
	const many = 2500
	for made := 0; made < many; made += 250 {
		ops := make([]any, 250)
		for i := range ops {
			ops[i] = &zk.CreateRequest{Path: fmt.Sprint("/l/order:", strings.Repeat("x", 800), made+i),
				Acl: zk.WorldACL(zk.PermAll)}
		}
		if _, err := c.Multi(ops...); err != nil {
			t.Fatal(err)
		}
	}
	for _, prefix := range []string{"", "held", "z"} {
		var keys []string
		for cursor, pages := "", 0; ; pages++ {
			locks, next, err := p.List(t.Context(), prefix, cursor, 1)
			if err != nil || pages > 3 {
				t.Fatal(locks, err, pages)
			}
			for _, l := range locks {
				keys = append(keys, l.Key)
			}
			if cursor = next; next == "" {
				break
			}
		}
		if want := map[string]int{"": 2, "held": 1, "z": 1}[prefix]; len(keys) != want {
			t.Errorf("%d locks that begin with %q are listed: %v", len(keys), prefix, keys)
		}
	}
	if r := p.want(p.renew("held", held), cache.Done); r.SessionNo != no {
		t.Errorf("session %d after %d", r.SessionNo, no)
	}
	p.eventually("the connection for the list is closed", func() bool { return p.Connections() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := p.List(ctx, "", "", 1); err == nil {
		t.Error("List succeeds with a canceled context")
	}
}

func TestSweepRemovesWhatNobodyKnows(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	proxy, url := proxied(t, srv)
	p, other := newPeer(t, url+"?session=40s&timeout=2s"),
		newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	kept, _ := p.take("kept", cache.Exclusive)
	p.take("lost", cache.Exclusive)
	o, _ := other.take("queue", cache.Exclusive)
	queued := p.token()
	p.want(p.answered(func() cache.Result { return p.join("queue", queued) }), cache.Queued)
	// A busy server may drop the requests of a cut connection, and deletes parents that have become
	// empty. An acquire below a missing parent happens in no case, so each try has a parent of its
	// own.
	var asked []string
	lost := func() (n int) {
		for _, key := range asked {
			names, _, err := srv.Admin().Children("/" + key)
			if err != nil && err != zk.ErrNoNode {
				t.Fatal(err)
			}
			n += len(names)
		}
		return n
	}
	p.eventually("an acquire happens whose answer is lost", func() bool {
		key, used := fmt.Sprintf("asked-%d", len(asked)), p.token()
		p.soon(cache.OpTry, key, used)
		p.released(key, used)
		asked = append(asked, key)
		lostAnswer(t, p, proxy, true, func() cache.Result { return p.try(key, p.token()) })
		p.eventually("it is back", func() bool { return p.Ping(t.Context()) == nil })
		return lost() > 0
	})
	want := 2 + lost()
	n, err := p.Sweep(t.Context(), func(key string, token uint64) bool {
		return key == "kept" && token == kept
	})
	if n != want || err != nil {
		t.Errorf("it removes %d of %d (%v)", n, want, err)
	}
	other.take("lost", cache.Exclusive)
	for _, key := range asked {
		other.take(key, cache.Exclusive)
	}
	other.want(other.release("queue", o), cache.Done)
	other.take("queue", cache.Exclusive)
	p.want(p.renew("kept", kept), cache.Done)
	if n, err := p.Sweep(t.Context(), func(string, uint64) bool { return true }); n != 0 ||
		err != nil {
		t.Errorf("again it removes %d (%v)", n, err)
	}
}

func TestNamesOfAllKindsAreLocks(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL())
	keys := []string{".", "..", "...", "zookeeper", ".locksidecar", "a/b", "/", "//", "%", "%2F", "😀",
		"\ue000", "\uf8ff", "\ufffd", "\u0085", "a\x7f",
		strings.Repeat("/", 512), strings.Repeat("é", 256)}
	var ops []upstream.Op
	for _, k := range keys {
		ops = append(ops, upstream.Op{Kind: cache.OpTry, Key: k, Token: p.token(), TTL: long})
	}
	res, err := p.apply(ops...)
	for i, r := range res {
		if r.Status != cache.Granted {
			t.Errorf("%q is %v (%v)", keys[i], r.Status, r.Err)
		}
	}
	locks, _, err2 := p.List(t.Context(), "", "", 100)
	if err != nil || err2 != nil || len(locks) != len(keys) {
		t.Errorf("of %d there are %d (%v, %v)", len(keys), len(locks), err, err2)
	}
}

func TestTheBaseIsTheNodesCzxid(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL())
	var ops []upstream.Op
	for i := range 20 {
		ops = append(ops, upstream.Op{Kind: cache.OpTry, Key: fmt.Sprint(i), Token: p.token(), TTL: long})
	}
	res, _ := p.apply(ops...)
	for i, r := range res {
		path := "/" + fmt.Sprint(i)
		_, stat, err := srv.Admin().Get(path + "/" + nth(t, srv.Admin(), path, 0))
		if err != nil || r.Base != uint64(stat.Czxid) {
			t.Errorf("%d has base %d: %+v (%v)", i, r.Base, stat, err)
		}
	}
}

func TestNothingStaysAtTheServer(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"/l")
	tok, _ := p.take("a", cache.Exclusive)
	p.want(p.release("a", tok), cache.Done)
	p.eventually("the lock's node is gone", func() bool { return len(residue(t, srv, "/l")) == 0 })
	p.take("a", cache.Exclusive) // the node is assumed to exist, and is made again
	q, err := zookeeper.Open(t.Context(), config(t, srv.URL()+"/m"))
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	p.eventually("an idle store leaves nothing", func() bool {
		return len(children(t, srv, "/m")) == 0
	})
}
