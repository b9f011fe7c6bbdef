package etcd_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

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
