package daemon

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// slowStore reads one holder in two seconds. The holder's host has held the lock for ten by then.
type slowStore struct {
	upstream.Lister
	upstream.Registrar
	*beating
}

func (s slowStore) Holders(context.Context, string, cache.Mode, int) ([]upstream.Lock, error) {
	s.now.Add(int64(2 * time.Second))
	return []upstream.Lock{{Daemon: "1", Token: 1, Held: int64(10 * time.Second)}}, nil
}

func (slowStore) Registered(context.Context, []string) (map[string]upstream.Registration, error) {
	return nil, nil
}

// The time of a query counts once.
func TestAHolderThatIsWaitedForHasHeldAsLongAsItHas(t *testing.T) {
	b := newBeating(t)
	d := &Daemon{engine: b.e, clock: b.now.Load}
	keys := []waitedKey{{key: "a"}, {key: "b"}}
	d.waitedFor.learn(t.Context(), d, keys, func(*Unit) upstream.Lister { return slowStore{beating: b} })(t.Context())
	b.now.Add(int64(time.Second))
	for i, want := range []uint64{13_000, 11_000} {
		if h := d.waitedFor.known[keys[i]].asOf(b.now.Load()); h == nil || uint64(h.Held) != want {
			t.Errorf("%s: %+v, want %d ms", keys[i].key, h, want)
		}
	}
}
