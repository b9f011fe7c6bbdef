package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A daemon opens the same etcd anew, as after a reload. It refuses a server that is behind what an
// earlier Store has seen, since fences would fall.
func TestAStoreContinuesFromWhatAnEarlierOneHasSeen(t *testing.T) {
	cfg, err := etcd.Parse("etcd://" + testserver.StartEtcd(t).Addr())
	if err != nil {
		t.Fatal(err)
	}
	seen := new(atomic.Int64)
	cfg.Highest = seen
	for range 2 {
		s, err := etcd.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	rev := seen.Load()
	if rev < 2 {
		t.Errorf("two sessions were made, and the revision is %d", rev)
	}
	seen.Store(rev + 1000)
	if _, err := etcd.Open(t.Context(), cfg); !errors.Is(err,
		etcd.ErrServer) || !strings.Contains(err.Error(), "lost data") {
		t.Errorf("a server that is behind: %v", err)
	}
}

// A server that loses data may keep the session.
func TestNothingIsGrantedByAServerThatIsBehind(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	for _, lost := range []int64{1, 1000} {
		for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared, cache.Permit} {
			for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
				cfg := config(t, "", srv)
				cfg.Highest = new(atomic.Int64)
				p := &peer{TB: t, Store: openConfig(t, cfg)}
				op := upstream.Op{Kind: kind, Mode: mode, Limit: 1, Key: fmt.Sprint(lost, mode, kind),
					Token: p.token(), TTL: long}
				cfg.Highest.Add(lost)
				res, err := p.apply(op)
				if r := res[0]; r.Status != cache.Unknown && r.Status != cache.Refused ||
					!errors.Is(err, etcd.ErrServer) || !errors.Is(err, upstream.ErrDown) {
					t.Errorf("%s: %v, base %d, %v", op.Key, r.Status, r.Base, err)
				}
				p.lost(1)
			}
		}
	}
}

// A store that has no requests also learns how far the cluster is, so that it notices a loss.
func TestAnIdleStoreSeesWhatOthersWrite(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	cfg := config(t, "ttl=1s", srv)
	cfg.Highest = new(atomic.Int64)
	openConfig(t, cfg)
	r, err := srv.Admin().Put(t.Context(), "/other", "")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has seen the revision", func() bool {
		return cfg.Highest.Load() >= r.Header.Revision
	})
}

// Programs may rely on the locks of a session that was lost early until its deadline.
func TestASessionThatIsLostEarlyKeepsItsKeysUntilItsDeadline(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	cfg := config(t, "ttl=1m", srv)
	cfg.Highest = new(atomic.Int64)
	p := &peer{TB: t, Store: openConfig(t, cfg)}
	p.take("held", cache.Exclusive)
	cfg.Highest.Add(1000)
	p.want(p.do(cache.OpTry, cache.Exclusive, "other", p.token()), cache.Unknown)
	p.lost(1)
	before := keys(t, srv.Admin())
	_, _ = p.Sweep(t.Context(), func(string, uint64) bool { return false })
	if now := keys(t, srv.Admin()); len(now) != len(before) {
		t.Errorf("%q remain of %q", now, before)
	}
}
