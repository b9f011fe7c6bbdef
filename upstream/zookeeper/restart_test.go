package zookeeper_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

// logged opens a store and returns its log, too.
func logged(t *testing.T, url string) (*peer, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.WarnLevel)
	cfg := config(t, url)
	cfg.Log = zap.New(core)
	return adopt(t, storetest.Opened(t, func() (*zookeeper.Store, error) {
		return zookeeper.Open(t.Context(), cfg)
	})), logs
}

// seen acquires and releases a lock n times, so that the store has seen as many transactions.
func (p *peer) seen(n int) (base uint64) {
	p.Helper()
	for range n {
		var token uint64
		token, base = p.take("seen", cache.Exclusive)
		p.released("seen", token)
	}
	return base
}

// advance carries out many transactions at a server. Each attempt to make a session takes some, and
// on a busy machine there are many attempts. They must not bring a server that has lost its data to
// where it was before.
func advance(t *testing.T, srv *testserver.ZooKeeper) {
	t.Helper()
	const path, at, each = "/advance", 50, 40
	c := srv.Admin()
	if _, err := c.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range at {
		wg.Go(func() {
			for range each {
				if _, err := c.Set(path, nil, -1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// forgotten checks that the store refuses every acquire because its servers have lost data.
func (p *peer) forgotten(key string) {
	p.Helper()
	p.eventually("the error names the reason", func() bool {
		res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: key, Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpTry, Mode: cache.Permit, Limit: 1, Key: key,
				Token: p.token(), TTL: long})
		for _, r := range res {
			if r.Status != cache.Refused && r.Status != cache.Unknown || !errors.Is(err, upstream.ErrDown) {
				p.Fatalf("it is %v (%v)", r.Status, err)
			}
		}
		return errors.Is(err, zookeeper.ErrServer) && strings.Contains(err.Error(), "lost data") &&
			strings.Contains(err.Error(), "fence_epoch")
	})
}

func TestReleaseAfterARestartIsNoLoss(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p, logs := logged(t, srv.URL()+"?session=30s&timeout=10s")
	var tokens []uint64
	keys := []string{"a", "b", "c", "swept", "deleted"}
	for _, key := range keys {
		token, _ := p.take(key, cache.Exclusive)
		tokens = append(tokens, token)
	}
	permits := sem{p, "permits", 2}
	held, _ := permits.take(2)
	srv.Restart()
	for i, key := range keys { // a renewal watches the lease's own node after a restart
		p.eventually("it is renewed", func() bool { return p.renew(key, tokens[i]).Status == cache.Done })
	}
	for _, token := range held {
		p.eventually("it is renewed", func() bool {
			return permits.do(cache.OpRenew, token).Status == cache.Done
		})
	}
	for i, key := range keys[:3] {
		p.want(p.release(key, tokens[i]), cache.Done)
	}
	p.want(permits.do(cache.OpRelease, held[0]), cache.Done)
	known := func(key string, token uint64) bool { return key != "swept" && token != held[1] }
	if n, err := p.Sweep(t.Context(), known); n != 2 || err != nil {
		t.Errorf("%d are swept (%v)", n, err)
	}
	if n := logs.FilterMessageSnippet("another client has deleted").Len(); n != 0 {
		t.Errorf("%d of 6 leases that ended by themselves are called lost", n)
	}
	for len(p.Hints()) > 0 {
		if h := <-p.Hints(); h.Kind == cache.HintGone {
			t.Errorf("a hint says that %s is gone", h.Key)
		}
	}
	del(t, srv.Admin(), "/deleted", 0)
	p.hinted(cache.HintGone, "deleted")
	if n := logs.FilterMessageSnippet("another client has deleted").Len(); n != 1 {
		t.Errorf("%d leases are called lost, one is", n)
	}
}

func TestFencesDoNotFallWhenTheServerLostItsData(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	idle, logs := logged(t, srv.URL()+"?session=4s&timeout=2s")
	busy := newPeer(t, srv.URL()+"?session=4s&timeout=2s")
	advance(t, srv)
	base := busy.seen(1)
	idle.seen(1)
	held, _ := busy.take("held", cache.Exclusive)
	srv.Kill()
	srv.Wipe()
	srv.Start()
	busy.forgotten("held")
	busy.want(busy.renew("held", held), cache.Refused)
	idle.forgotten("held") // its session had no nodes
	told := 0
	for _, l := range logs.FilterMessageSnippet("no session").All() {
		for _, f := range l.Context {
			if err, ok := f.Interface.(error); ok && strings.Contains(err.Error(), "fence_epoch") {
				told++
			}
		}
	}
	if told == 0 {
		t.Error("the log does not say that the server has lost data")
	}
	fresh := newPeer(t, srv.URL()) // a new store cannot detect the loss
	token, next := fresh.take("held", cache.Exclusive)
	if next >= base {
		t.Fatalf("the server is at %d, it has lost nothing", next)
	}
	fresh.want(fresh.release("held", token), cache.Done)
}

func TestABaseIsAboveTheFloor(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	base := p.seen(1)
	for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared, cache.Permit} {
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			op := upstream.Op{Kind: kind, Mode: mode, Key: mode.String() + kind.String(), Token: p.token(),
				TTL: long, Floor: base + 1000, Limit: 1}
			res, _ := p.apply(op)
			p.want(res[0], cache.Refused)
			says(t, res[0].Err, srv.Addr(), "fence_epoch")
			peek, _ := p.apply(upstream.Op{Kind: cache.OpPeek, Mode: mode, Key: op.Key})
			p.want(peek[0], cache.Done) // no node remains
			op.Floor, op.Token = base, p.token()
			res, _ = p.apply(op)
			base = p.want(res[0], cache.Granted).Base
			op.Floor = base + 1000 // a held lease keeps its fence
			res, _ = p.apply(op)
			if r := p.want(res[0], cache.Granted); r.Base != base {
				t.Errorf("base %d after %d", r.Base, base)
			}
		}
	}
}

func TestIdleStoreGetsASessionAfterALongOutage(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"?session=4s&timeout=2s")
	base := p.seen(1)
	srv.Kill()
	p.lost(1) // the session has no nodes, so the store gives it up once it must have expired
	srv.Start()
	var token uint64
	p.eventually("there is a new session", func() bool { return p.Ping(t.Context()) == nil })
	p.answered(func() cache.Result { token = p.token(); return p.try("seen", token) })
	if r := p.want(p.try("seen", token), cache.Granted); r.Base <= base || r.SessionNo < 2 {
		t.Errorf("base %d after %d, in session %d", r.Base, base, r.SessionNo)
	}
}

func TestEnsembleRestartedAndWiped(t *testing.T) {
	t.Parallel()
	// A busy machine is too slow for the usual limits when all members start at once.
	all := testserver.StartZooKeeperEnsemble(t, 3, "initLimit=300", "syncLimit=150")
	var hosts []string
	for _, z := range all {
		hosts = append(hosts, z.Addr())
	}
	// each calls f for all members concurrently: a member without a quorum does not serve.
	each := func(f func(z *testserver.ZooKeeper)) {
		var wg sync.WaitGroup
		for _, z := range all {
			wg.Go(func() { f(z) })
		}
		wg.Wait()
	}
	url := "zookeeper://" + strings.Join(hosts, ",") + "/locks"
	p, logs := logged(t, url+"?session=30s&timeout=5s")
	t.Cleanup(func() {
		if t.Failed() {
			for _, l := range logs.All() {
				t.Log(l.Time, l.Message, l.ContextMap())
			}
		}
	})
	short := newPeer(t, url+"?session=4s&timeout=2s")
	base := p.seen(3)
	token, _ := p.take("a", cache.Exclusive)

	each((*testserver.ZooKeeper).Kill)
	backup := make([]func(), len(all))
	for i, z := range all {
		backup[i] = z.Backup()
	}
	each((*testserver.ZooKeeper).Start)
	p.eventually("a restart with all data keeps the lease", func() bool {
		return p.renew("a", token).Status == cache.Done
	})
	again := p.answered(func() cache.Result { return p.try("a", token) })
	base = max(base, p.want(again, cache.Granted).Base)

	all[0].Kill()
	all[0].Wipe()
	all[0].Start()
	p.eventually("a member that has lost its data gets it from the others", func() bool {
		return p.renew("a", token).Status == cache.Done
	})
	p.released("a", token)
	if next := p.seen(3); next <= base {
		t.Errorf("base %d after %d", next, base)
	}

	// Each election starts at a higher transaction id. So new transactions on a restored backup have
	// larger ids than the lost ones, unless there was another election in between.
	each((*testserver.ZooKeeper).Kill)
	each((*testserver.ZooKeeper).Start)
	advance(t, all[0]) // there may be an election that the restored members do not need
	short.eventually("it is back", func() bool { return short.Ping(t.Context()) == nil })
	each((*testserver.ZooKeeper).Kill)
	for _, restore := range backup {
		restore()
	}
	each((*testserver.ZooKeeper).Start)
	short.forgotten("a")

	each((*testserver.ZooKeeper).Kill)
	each((*testserver.ZooKeeper).Wipe)
	each((*testserver.ZooKeeper).Start)
	short.forgotten("a")
	fresh := newPeer(t, url)
	fresh.take("a", cache.Exclusive)
}
