package zookeeper_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

// noServerRemoval is a server option. With it, the server removes no empty containers during the
// test.
const noServerRemoval = "-Dznode.container.checkIntervalMs=3600000"

// idlePeer opens a store with the changes of set, usually WithIdle.
func idlePeer(t testing.TB, url string, set ...func(*zookeeper.Config)) *peer {
	t.Helper()
	s, err := zookeeper.Open(t.Context(), storetest.With(config(t, url), set))
	if err != nil {
		t.Fatal(err)
	}
	return adopt(t, s)
}

var nodeCount = regexp.MustCompile(`Node count: (\d+)`)

// nodes returns the number of nodes on the server.
func nodes(p *peer, srv *testserver.ZooKeeper) (n int) {
	p.Helper()
	p.eventually("the server says how many nodes it has", func() bool {
		m := nodeCount.FindStringSubmatch(srv.Say("srvr"))
		if m != nil {
			n, _ = strconv.Atoi(m[1])
		}
		return m != nil
	})
	return n
}

// useOnce acquires and releases n new keys. Every eighth is a semaphore.
func (p *peer) useOnce(n int) {
	p.Helper()
	ops := make([]upstream.Op, n)
	for i := range ops {
		ops[i] = upstream.Op{Kind: cache.OpTry, Token: p.token(), TTL: long}
		ops[i].Key = fmt.Sprint("order:", ops[i].Token)
		if i%8 == 0 {
			ops[i].Mode, ops[i].Limit = cache.Permit, 1
		}
	}
	for _, st := range []cache.Status{cache.Granted, cache.Done} {
		res, _ := p.apply(ops...)
		for i, r := range res {
			p.want(r, st)
			ops[i].Kind = cache.OpRelease
		}
	}
}

// The nodes of keys that are used once do not accumulate, at any rate. To run it with 100,000 keys:
//
//	LOCKSIDECAR_TEST_KEYS=100000 go test -run KeysUsedOnce -v -timeout 30m ./upstream/zookeeper
func TestKeysUsedOnceLeaveNoNodes(t *testing.T) {
	t.Parallel()
	const batch = 64
	srv := testserver.StartZooKeeper(t, noServerRemoval)
	if s := os.Getenv("LOCKSIDECAR_TEST_KEYS"); s != "" {
		keys, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		p := idlePeer(t, srv.URL()+"?session=40s&timeout=20s")
		before, most, start := nodes(p, srv), 0, time.Now()
		for used := 0; used < keys; used += batch {
			p.useOnce(batch)
			if used%(32*batch) == 0 {
				most = max(most, nodes(p, srv))
			}
		}
		n, bytes := p.Idle()
		took := time.Since(start)
		t.Logf("%d keys in %.0f s, %.0f a second: at most %d nodes, %d at the end; %d parents are remembered in %d kB",
			keys, took.Seconds(), float64(keys)/took.Seconds(), most, nodes(p, srv), n, bytes>>10)
		for start = time.Now(); nodes(p, srv) > before+1; time.Sleep(time.Second) {
			if time.Since(start) > 5*time.Minute {
				t.Fatalf("%d nodes are left", nodes(p, srv))
			}
		}
		t.Logf("none is left %.0f s later", time.Since(start).Seconds())
		return
	}

	// Above the limit, the oldest parents are removed early.
	const keys, kept = 2048, 256
	p := idlePeer(t, srv.URL()+"?session=40s&timeout=20s",
		zookeeper.WithIdle(time.Hour, kept*zookeeper.IdleCost, time.Millisecond))
	before := nodes(p, srv)
	for used := 0; used < keys; used += 4 * batch {
		for range 4 {
			p.useOnce(batch)
		}
		p.eventually("there are not more nodes than idle parents may be", func() bool {
			return nodes(p, srv) <= before+1+kept
		})
	}
	if n, _ := p.Idle(); n == 0 || n > kept {
		t.Errorf("%d idle parents are remembered", n)
	}

	// All others are removed after their idle time.
	q := idlePeer(t, srv.URL()+"/q?session=40s&timeout=20s",
		zookeeper.WithIdle(100*time.Millisecond, 1<<20, time.Millisecond))
	q.useOnce(batch)
	q.eventually("no node is left of keys that are not used any more", func() bool {
		n, _ := q.Idle()
		return n == 0 && len(residue(t, srv, "/q")) == 0
	})
}

func TestParentsOfALostSessionAreRemoved(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t, noServerRemoval)
	proxy, url := proxied(t, srv)
	// The dead session's nodes have to expire before the parents have been tried three times.
	p := idlePeer(t, url+"/l?session=4s&timeout=2s",
		zookeeper.WithIdle(5*time.Second, 1<<20, time.Millisecond))
	p.take("a", cache.Exclusive)
	sem{p, "b", 1}.take(1)
	proxy.BlackHole(faultproxy.Both, true)
	p.lost(1)
	p.eventually("the parents are remembered", func() bool { n, _ := p.Idle(); return n == 2 })
	if err := proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	p.eventually("they are removed", func() bool { return len(residue(t, srv, "/l")) == 0 })
}

func TestOnlyOurEmptyParentsAreRemoved(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t, noServerRemoval)
	p, other := idlePeer(t, srv.URL()+"/l", zookeeper.WithIdle(0, 0, time.Millisecond)),
		newPeer(t, srv.URL()+"/l")
	// A permanent node, as kazoo and the Go client create it and rely on it.
	if _, err := srv.Admin().Create("/l/kept", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	held, _ := other.take("held", cache.Exclusive)
	s := sem{other, "sem", 1}
	permit, _ := s.take(1)
	p.used("kept")
	p.want(p.try("held", p.token()), cache.Busy)
	p.want(sem{p, "sem", 1}.do(cache.OpTry, p.token()), cache.Busy)
	p.used("free")
	p.eventually("the idle parent is removed", func() bool {
		n, _ := p.Idle()
		return n == 0 && len(children(t, srv, "/l")) == 3 // kept, held and .locksidecar
	})
	if left := residue(t, srv, "/l"); len(left) != 5 {
		t.Errorf("these nodes are left: %v", left)
	}
	other.want(other.renew("held", held), cache.Done)
	other.want(s.do(cache.OpRenew, permit[0]), cache.Done)
	other.want(other.release("held", held), cache.Done)
}

// Parents are removed all the time while others use them: each lock has one holder, fences rise,
// and every acquire succeeds.
func TestParentsRemovedUnderOthers(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t, noServerRemoval)
	cur := startCurator(t, srv, 30*time.Second)
	p := idlePeer(t, srv.URL()+"/locks?session=30s&timeout=10s",
		zookeeper.WithIdle(0, 0, time.Millisecond))
	for range 2 { // Curator's lock has used the parent before it goes away
		p.used("a")
		cur.want(cur.ask("lock /locks/a"), "yes")
		cur.want(cur.ask("unlock /locks/a"), "done")
		p.used("a")
		p.eventually("the parent is removed", func() bool {
			left := children(t, srv, "/locks")
			data, _, _ := srv.Admin().Get("/locks/a")
			// Curator has made the parent, so the server removes it.
			if len(left) == 2 && string(data) != "locksidecar" {
				_ = srv.Admin().Delete("/locks/a", -1)
			}
			return len(left) == 1
		})
	}
	const turns = 40
	var inside atomic.Int32
	var last atomic.Uint64
	enter := func(name string, base uint64) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%s got the lock beside %d other holders", name, n-1)
		}
		if was := last.Load(); base != 0 && base <= was {
			t.Errorf("base %d after %d", base, was)
		} else if base != 0 {
			last.Store(base)
		}
		inside.Add(-1)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range turns {
			if got := <-cur.ask("lock /locks/a"); got != "yes" {
				t.Errorf("Curator does not get it: %s", got)
				return
			}
			enter("Curator", 0)
			if got := <-cur.ask("unlock /locks/a"); got != "done" {
				t.Errorf("Curator cannot release it: %s", got)
				return
			}
		}
	})
	for range 2 {
		for _, kind := range []cache.OpKind{cache.OpJoin, cache.OpTry} {
			x := idlePeer(t, srv.URL()+"/locks?session=30s&timeout=10s",
				zookeeper.WithIdle(0, 0, time.Millisecond))
			wg.Go(func() {
				for range turns {
					tok := x.token()
					var r cache.Result
					for end := time.Now().Add(bound); r.Status != cache.Granted; r = x.do(kind,
						cache.Exclusive, "a", tok) {
						if time.Now().After(end) {
							t.Errorf("the lock is not granted: %v (%v)", r.Status, r.Err)
							return
						}
					}
					enter("locksidecar", r.Base)
					if r := x.release("a", tok); r.Status != cache.Done {
						t.Errorf("release is %v (%v)", r.Status, r.Err)
					}
				}
			})
		}
	}
	wg.Wait()
}

// Two hosts remove the same parents at the same time.
func TestParentsRemovedByTwo(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t, noServerRemoval)
	var wg sync.WaitGroup
	for range 2 {
		p := idlePeer(t, srv.URL()+"/l?session=30s&timeout=10s",
			zookeeper.WithIdle(0, 0, time.Millisecond))
		wg.Go(func() {
			for range 20 {
				p.last = 0 // the same keys
				ops := make([]upstream.Op, 32)
				for i := range ops {
					ops[i] = upstream.Op{Kind: cache.OpTry, Key: fmt.Sprint("k", i), Mode: cache.Shared,
						Token: p.token(), TTL: long}
				}
				for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRelease} {
					for i := range ops {
						ops[i].Kind = kind
					}
					res, _ := p.apply(ops...)
					for _, r := range res {
						if r.Status != cache.Granted && r.Status != cache.Done {
							t.Errorf("%v is %v (%v)", kind, r.Status, r.Err)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	for end := time.Now().Add(bound); len(residue(t, srv,
		"/l")) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("these nodes are left: %v", residue(t, srv, "/l"))
		}
	}
}
