package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream"
)

// mute is a store that does not answer who holds a key.
type mute struct {
	upstream.Store
	asked atomic.Int64
}

func (s *mute) Capabilities() upstream.Capabilities { return upstream.Capabilities{Registrar: s} }

func (s *mute) Register(context.Context, upstream.Registration, time.Duration) error { return nil }

func (s *mute) Unregister(context.Context) error { return nil }

func (s *mute) Registered(context.Context, []string) (map[string]upstream.Registration, error) {
	return nil, nil
}

func (s *mute) Holders(ctx context.Context, _ string, _ cache.Mode,
	_ int) ([]upstream.Lock, error) {
	s.asked.Add(1)
	<-ctx.Done()
	return nil, fmt.Errorf("%w: %w", upstream.ErrDown, ctx.Err())
}

// A client asks who holds eight keys of a store that hangs. Another process can take over
// meanwhile: the locks of other stores depend on it. A short lease lets the daemon stand still for
// a tenth of its TTL only.
func TestATakeoverDoesNotWaitForQuestionsToAStoreThatHangs(t *testing.T) {
	for _, ttl := range []time.Duration{30 * time.Second, time.Second} {
		s := &mute{Store: inMemory(t)}
		h := start(t, nil, func(c *daemon.Config) {
			c.Stores = append(c.Stores, daemon.StoreConfig{Name: "second", Store: s, Close: func() {
				_ = s.Close()
			}})
			c.Namespaces = []engine.Namespace{{Store: "store"}, {Prefix: "a", Store: "second"}}
		})
		c := h.dial(client.Options{})
		acquire(t, c, client.AcquireArgs{Key: "k", TTL: ttl})
		r := h.raw().hello()
		for i := range uint64(8) {
			r.send(&protocol.Request{Op: protocol.OpInspect, ID: 2 + i, Key: fmt.Append(nil, "a", i),
				Flags: protocol.FlagHolders})
		}
		eventually(t, "the store is asked", func() bool { return s.asked.Load() > 0 })
		if err := h.d.Park(func([]int) error { return errKeep }); !errors.Is(err, errKeep) {
			t.Errorf("TTL %v: %v", ttl, err)
		}
		_ = r.Close()
	}
}
