package etcd

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A request that arrives after its withdrawal does nothing.
func TestLateRequestDoesNothing(t *testing.T) {
	srv := testserver.StartEtcd(t)
	cfg, err := Parse("etcd://" + srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	late := func(op upstream.Op) *pb.TxnRequest {
		b := &batch{s: s, sess: s.cur.Load(), ops: []upstream.Op{op}, results: make([]upstream.Result, 1)}
		b.start()
		p := b.parts()[0]
		return b.request(&p)
	}
	apply := func(op upstream.Op) cache.Result {
		res := make([]upstream.Result, 1)
		_ = s.Apply(t.Context(), []upstream.Op{op}, res)
		return res[0]
	}
	for i, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
		for j, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			op := upstream.Op{Kind: kind, Mode: mode, Key: "k", Token: uint64(10*i + j + 1),
				TTL: time.Minute}
			req := late(op)
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			_ = s.Apply(gone, []upstream.Op{op}, make([]upstream.Result, 1))
			s.lockKeys.mu.Lock() // as if the request had been sent without an answer
			s.lockKeys.unresolved[acquireID{lock: "k", token: op.Token}] = s.cur.Load().fence.Load()
			s.lockKeys.mu.Unlock()
			op.Kind = cache.OpWithdraw
			if r := apply(op); r.Status != cache.Done {
				t.Fatal(r)
			}
			r, err := s.client.kv.Txn(t.Context(), req)
			if err != nil || r.Succeeded {
				t.Fatalf("the late request succeeds: %v, %v", r, err)
			}
			if r := apply(upstream.Op{Kind: cache.OpPeek, Key: "k"}); r.Status != cache.Done {
				t.Fatalf("something stands: %v", r)
			}
			if len(s.lockKeys.unresolved) != 0 {
				t.Error("it is still in doubt")
			}
		}
	}
}

// Batches that were in flight while the fence moved are sent again.
func TestFenceMovesUnderABatch(t *testing.T) {
	srv := testserver.StartEtcd(t)
	cfg, err := Parse("etcd://" + srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n := s.cur.Load()
	old := n.fence.Load()
	if err := s.writeKey(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n.fence.Store(old)
	res := make([]upstream.Result, 1)
	if err := s.Apply(t.Context(), []upstream.Op{{Kind: cache.OpTry, Key: "k", Token: 1,
		TTL: time.Minute}}, res); err != nil || res[0].Status != cache.Granted {
		t.Fatal(res[0], err)
	}
}

func TestBasesOutOfRangeAreRefused(t *testing.T) {
	srv := testserver.StartEtcd(t)
	cfg, err := Parse("etcd://" + srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	res := make([]upstream.Result, 1)
	op := upstream.Op{Kind: cache.OpTry, Key: "k", Token: 1, TTL: time.Minute, Floor: 1_000_000}
	if _ = s.Apply(t.Context(), []upstream.Op{op}, res); res[0].Status != cache.Refused {
		t.Fatal(res[0])
	}
	op.Kind = cache.OpPeek
	if _ = s.Apply(t.Context(), []upstream.Op{op}, res); res[0].Status != cache.Done {
		t.Fatalf("something stands: %v", res[0])
	}
	b := &batch{s: s, sess: s.cur.Load(), ops: []upstream.Op{op}, results: res}
	b.grantedLocked(&step{}, int64(cache.MaxBase)+1, cache.Exclusive, false, true)
	if len(b.steps) != 1 || b.steps[0].action != actRemove {
		t.Error("a base of 2^53 is granted")
	}
	// A join has just queued, and its turn came before its reading.
	b.steps, b.ops[0] = nil, upstream.Op{Kind: cache.OpJoin, Key: "k", Token: 2, Floor: 1_000_000}
	b.placedLocked(&step{kind: cache.OpJoin, join: true, keyState: keyState{key: "k2"}, put: 7},
		[]*mvccpb.KeyValue{{Key: []byte("k2"), CreateRevision: 7}})
	if len(b.steps) != 1 || b.steps[0].action != actRemove {
		t.Error("a base below the floor is granted")
	}
}

func TestEvaluate(t *testing.T) {
	kv := func(key string, rev int64, value string) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), CreateRevision: rev, Value: []byte(value)}
	}
	x, r, shortLived := valueExclusive, valueShared, valueShortLived
	for _, c := range []struct {
		values             []string
		at                 int
		granted, contended bool
		pred               int
	}{
		{[]string{shortLived}, 0, true, false, -1},
		{[]string{x, shortLived}, 0, true, false, -1},
		{[]string{x, shortLived, x}, 0, true, true, -1},
		{[]string{x, shortLived}, 1, false, false, 0},
		{[]string{r, shortLived, r}, 2, false, false, 1},
		{[]string{shortLived, shortLived}, 0, true, false, -1},
		{[]string{x}, 0, true, false, -1},
		{[]string{r}, 0, true, false, -1},
		{[]string{x, x}, 0, true, true, -1},
		{[]string{x, r}, 0, true, true, -1},
		{[]string{r, r}, 0, true, false, -1},
		{[]string{r, r}, 1, true, false, -1},
		{[]string{r, r, x}, 1, true, true, -1},
		{[]string{r, r, x}, 2, false, false, 1},
		{[]string{r, x, r, r}, 3, false, false, 1},
		{[]string{"", r}, 1, false, false, 0}, // a concurrency.Mutex
		{[]string{"", "", x}, 2, false, false, 1},
		{[]string{r, "anything", r}, 2, false, false, 1},
		{[]string{r, "anything", r}, 0, true, true, -1},
	} {
		var queue []*mvccpb.KeyValue
		for i, v := range c.values { // in the order of keys, which differs from the order of revisions
			queue = append([]*mvccpb.KeyValue{kv(string(rune('a'+i)), int64(i+5), v)}, queue...)
		}
		p, ok := evaluate(queue, string(rune('a'+c.at)))
		pred := -1
		if p.pred != nil {
			pred = int(p.pred.Key[0] - 'a')
		}
		if !ok || p.granted != c.granted || c.granted && p.contended != c.contended || pred != c.pred {
			t.Errorf("%q at %d: granted %v, contended %v, behind %d", c.values, c.at, p.granted,
				p.contended, pred)
		}
	}
	if _, ok := evaluate(nil, "a"); ok {
		t.Error("a key is found where none is")
	}
}

func TestVersions(t *testing.T) {
	for s, want := range map[string]bool{"3.3.27": true, "3.4.0": false, "3.5.12": false,
		"3.7.3": false, "4.0.0": false, "2.3": true, "3.4.0-rc.1": false} {
		v, ok := driverkit.ParseVersion(s)
		if !ok || v.Before(oldest) != want {
			t.Errorf("%s is %v", s, v)
		}
	}
	for s, want := range map[string]bool{"3.4.0": true, "3.4.28": true, "3.4.29": false,
		"3.4.37": false, "3.5.0": true, "3.5.12": true, "3.5.12-rc.1": true,
		"3.5.13": false, "3.6.0": false, "3.7.3": false, "4.0.0": false} {
		if v, _ := driverkit.ParseVersion(s); revokesLiveLeases(v) != want {
			t.Errorf("that %s can end live leases is %v", s, !want)
		}
	}
	for _, s := range []string{"", "three", "3", "3.x.1"} {
		if _, ok := driverkit.ParseVersion(s); ok {
			t.Errorf("%q is a version", s)
		}
	}
}

// A member that hangs gets no requests, except the last member that answers.
func TestMembersThatHang(t *testing.T) {
	m := newMembers([]string{"a:1", "b:1", "c:1"}, "http://")
	var use []string
	m.set = func(e ...string) { use = e }
	m.remote = map[string]string{"ra": "http://a:1", "rb": "http://b:1", "rc": "http://c:1"}
	for _, c := range []struct {
		hangs string
		use   []string
	}{
		{"ra", []string{"http://b:1", "http://c:1"}},
		{"rb", []string{"http://c:1"}},
		{"rc", []string{"http://a:1", "http://b:1"}},
		{"unknown", []string{"http://a:1", "http://b:1"}},
	} {
		if m.avoid(c.hangs); !slices.Equal(use, c.use) {
			t.Errorf("when %s hangs, %q are used", c.hangs, use)
		}
	}
	m.avoided["http://c:1"] = time.Now().Add(-time.Second)
	if m.restore(); len(use) != 3 {
		t.Errorf("later %q are used", use)
	}
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"a", "a/b", "%", "%2F", "a%25/", "/", "%session", "ä\xff"} {
		f.Add(s, uint64(1))
	}
	n := names{root: "/x/"}
	f.Fuzz(func(t *testing.T, lock string, token uint64) {
		if lock == "" {
			return
		}
		dir := n.dir(lock)
		k := key(dir, 1<<62|5, token)
		got, gotDir, ok := n.lock(k)
		if !ok || got != lock || gotDir != dir || k >= dirEnd(dir) ||
			strings.Count(dir[len(n.root):], "/") != 1 {
			t.Fatalf("%q has the key %q, which is %q's", lock, k, got)
		}
		if lease, no, ours := holder(k, dir); lease != 1<<62|5 || no != token || !ours {
			t.Fatalf("%q is of lease %x, token %d", k, lease, no)
		}
	})
}
