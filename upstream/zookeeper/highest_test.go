package zookeeper_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

// A daemon opens the same ZooKeeper anew, as after a reload. It refuses a server that is behind
// what an earlier Store has seen, since fences would fall.
func TestAStoreContinuesFromWhatAnEarlierOneHasSeen(t *testing.T) {
	t.Parallel()
	cfg, err := zookeeper.Parse(testserver.StartZooKeeper(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	seen := new(atomic.Int64)
	cfg.Clock, cfg.Highest = clock, seen
	for range 2 {
		s, err := zookeeper.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	rev := seen.Load()
	if rev < 2 {
		t.Errorf("two sessions were made, and the transaction id is %d", rev)
	}
	seen.Store(rev + 1000)
	if _, err := zookeeper.Open(t.Context(), cfg); !errors.Is(err,
		zookeeper.ErrServer) || !strings.Contains(err.Error(), "lost data") {
		t.Errorf("a server that is behind: %v", err)
	}
}

// A server that loses data may resume a session.
func TestNothingIsGrantedByAServerThatIsBehind(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared, cache.Permit} {
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			cfg := config(t, srv.URL()+"?session=30s&timeout=10s")
			cfg.Highest = new(atomic.Int64)
			s, err := zookeeper.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			p := adopt(t, s)
			p.seen(1)
			cfg.Highest.Add(1_000_000)
			res, err := p.apply(upstream.Op{Kind: kind, Mode: mode, Limit: 1,
				Key: mode.String() + kind.String(), Token: p.token(), TTL: long})
			p.want(res[0], cache.Unknown)
			if !errors.Is(err, zookeeper.ErrServer) || !errors.Is(err, upstream.ErrDown) {
				t.Errorf("the error is %v", err)
			}
			p.lost(1)
			p.forgotten("a")
		}
	}
}
