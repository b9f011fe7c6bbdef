package admin

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/engine/enginetest"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// slowStore reads one holder in two seconds. The holder's host has held the lock for ten by then.
type slowStore struct {
	upstream.Registrar
	now *atomic.Int64
}

func (s slowStore) Holders(context.Context, string, protocol.Mode, int) ([]upstream.Lock, error) {
	s.now.Add(int64(2 * time.Second))
	return []upstream.Lock{{Daemon: "1", Token: 1, Held: int64(10 * time.Second)}}, nil
}

func (slowStore) Registered(context.Context, []string) (map[string]upstream.Registration, error) {
	return nil, nil
}

// The time of a query counts once.
func TestAHolderThatIsWaitedForHasHeldAsLongAsItHas(t *testing.T) {
	var now atomic.Int64
	now.Store(int64(time.Hour))
	d := &Viewer{Engine: enginetest.New(t, now.Load, upstream.Info{}, 0).Engine, Clock: now.Load,
		Frozen: func() bool { return false }}
	keys := []waitedKey{{key: "a"}, {key: "b"}}
	d.waitedFor.learn(t.Context(), d, keys, func(*engine.StoreLane) upstream.Capabilities {
		return upstream.Capabilities{Registrar: slowStore{now: &now}}
	})(t.Context())
	now.Add(int64(time.Second))
	for i, want := range []uint64{13_000, 11_000} {
		if h := d.waitedFor.known[keys[i]].asOf(now.Load()); h == nil || uint64(h.Held) != want {
			t.Errorf("%s: %+v, want %d ms", keys[i].key, h, want)
		}
	}
}
