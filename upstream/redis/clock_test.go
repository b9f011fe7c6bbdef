package redis_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestConformanceOfClock(t *testing.T) {
	srv := testserver.StartRedisFaketime(t)
	storetest.Clock(t, func(t testing.TB, prefix string) upstream.Store { return reach(t, srv.URL()+"?", prefix) }, storetest.Options{}, srv.JumpClock)
}

// A jump ahead of the server's clock ends the leases that it jumps over. Other hosts can then
// acquire the keys before the holders' deadlines have passed. After a jump back, leases at the
// server outlive their holders by as much. Fences rise either way.
func TestTheServersClockJumps(t *testing.T) {
	srv := testserver.StartRedisFaketime(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "")
	var last uint64
	grow := func(base uint64) {
		t.Helper()
		if base <= last {
			t.Fatalf("base %d after %d", base, last)
		}
		last = base
	}
	for i, ahead := range []time.Duration{30 * time.Second, -time.Hour, 0, 24 * time.Hour,
		-24 * time.Hour, 0} {
		key := string(rune('a' + i))
		// Both leases have more time left than the 30 s of the first jump.
		held, base := p.take(key, cache.Exclusive)
		grow(base)
		shared, base := p.take(key+"s", cache.Shared)
		grow(base)
		before := srv.Admin().Time(t.Context()).Val()
		srv.JumpClock(ahead)
		jump := srv.Admin().Time(t.Context()).Val().Sub(before)
		stands := jump < long/2+10*time.Second // after the first jump, and after all jumps back
		want, other := cache.Done, cache.Busy
		if !stands {
			want, other = cache.NotHeld, cache.Granted
		}
		// Our scripts grant nothing while a lease stands that the jump has not ended.
		for _, op := range []upstream.Op{{Key: key}, {Key: key + "s"}} {
			op.Kind, op.Token, op.TTL, op.Floor = cache.OpTry, q.token(), long, 0
			r := q.apply(op)[0]
			q.want(r, other)
			if r.Status == cache.Granted {
				grow(r.Base)
			}
		}
		p.want(p.do(cache.OpRenew, cache.Exclusive, key, held), want)
		p.want(p.do(cache.OpRenew, cache.Shared, key+"s", shared), want)
		_, base = q.take(key+"next", cache.Exclusive)
		grow(base)
	}
}

func TestTheClockOfAClustersNodeJumpsAndItsFencesStay(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedisFaketime(t, "--cluster-enabled", "yes")
	srv.Do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	p := &peer{T: t}
	url := "redis+cluster://" + srv.Addr()
	for end := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		if srv.Admin().ClusterInfo(t.Context()).Val()[:16] == "cluster_state:ok" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the cluster does not work")
		}
	}
	p.Store = openStore(t, url)
	var last uint64
	for i, ahead := range []time.Duration{0, 25 * time.Hour, 0, -25 * time.Hour, 0,
		23 * time.Hour, 0} {
		srv.JumpClock(ahead)
		token, base := p.take("k", cache.Exclusive)
		if base <= last {
			t.Errorf("jump %d: base %d after %d", i, base, last)
		}
		last = base
		p.want(p.do(cache.OpRelease, 0, "k", token), cache.Done)
	}
}
