package admin

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// A view names the host that holds a key for which clients here wait. Views are frequent and stores
// may be slow. So a view queries a bounded number of keys, caches the answers, and waits only
// briefly for new ones. The next view shows an answer that comes later.
const (
	waitedKeys  = 32                     // keys of one query
	waitedFresh = 3 * time.Second        // a younger answer is not queried again
	waitedStale = 15 * time.Second       // an older answer is not shown
	waitedWait  = 250 * time.Millisecond // that a view waits for a query
	waitedAsk   = time.Second            // that a query lasts at most
)

// waitedFor caches which hosts hold the keys for which clients here wait.
type waitedFor struct {
	mu     sync.Mutex
	known  map[waitedKey]waitedHolder // guarded by mu
	asking bool                       // a query is in progress; guarded by mu
}

type waitedKey struct {
	key    string
	permit bool
}

type waitedHolder struct {
	holder *protocol.Holder // nil when no other host holds it
	at     int64
}

// asOf returns the holder with the times of now, if the holder has not changed since it was read.
func (h waitedHolder) asOf(now int64) *protocol.Holder {
	if h.holder == nil || h.holder.Held < 0 {
		return h.holder
	}
	one := *h.holder
	one.Held += engine.Millis(max(0, now-h.at))
	return &one
}

// fill sets the Holder of the rows whose key no client of this host holds.
func (w *waitedFor) fill(d *Viewer, rows []engine.ViewWaiter) {
	permit := protocol.Permit.String()
	ask := w.unknown(d, rows, permit)
	if len(ask) > 0 {
		done := make(chan struct{})
		d.Query(func(ctx context.Context, of engine.CapabilitiesOf) (then func(context.Context)) {
			learn := w.learn(ctx, d, ask, of)
			return func(ctx context.Context) { learn(ctx); close(done) }
		})
		t := time.NewTimer(waitedWait)
		select {
		case <-done:
		case <-d.Halt: // the query does not run
		case <-t.C:
		}
		t.Stop()
	}
	now := d.Clock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range rows {
		r := &rows[i]
		if h, ok := w.known[waitedKey{r.Key, r.Mode == permit}]; ok && r.Behind == nil &&
			now-h.at < int64(waitedStale) {
			r.Holder = h.asOf(now)
		}
	}
}

// unknown returns the keys to query now; none while a query is in progress.
func (w *waitedFor) unknown(d *Viewer, rows []engine.ViewWaiter, permit string) (ask []waitedKey) {
	now := d.Clock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, h := range w.known {
		if now-h.at > int64(waitedStale) {
			delete(w.known, k)
		}
	}
	if w.asking {
		return nil
	}
	seen := map[waitedKey]bool{}
	for i := range rows {
		k := waitedKey{rows[i].Key, rows[i].Mode == permit}
		h, ok := w.known[k]
		if rows[i].Behind != nil || seen[k] || ok && now-h.at < int64(waitedFresh) {
			continue
		}
		seen[k] = true
		if ask = append(ask, k); len(ask) == waitedKeys {
			break
		}
	}
	w.asking = len(ask) > 0
	return ask
}

// learn queries the stores for the holders of keys. The result asks their daemons, all at once, and
// caches the answers.
func (w *waitedFor) learn(
	ctx context.Context, d *Viewer, ask []waitedKey, of engine.CapabilitiesOf,
) (then func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, waitedAsk)
	defer cancel()
	var keys []waitedKey
	var there []engine.HoldersThere
	for _, k := range ask {
		sl := d.Engine.StoreFor(k.key)
		if sl.Down() != nil || ctx.Err() != nil || d.Frozen() { // a freeze waits for this query
			continue
		}
		mode := protocol.Exclusive
		if k.permit {
			mode = protocol.Permit
		}
		if h, err := d.Engine.HoldersAt(ctx, sl, of(sl).Registrar, k.key, mode,
			engine.MaxHolders); err == nil {
			keys, there = append(keys, k), append(there, h)
		}
	}
	return func(ctx context.Context) {
		d.Engine.AskDaemons(ctx, there...)
		now := d.Clock()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.known == nil {
			w.known = map[waitedKey]waitedHolder{}
		}
		for i, k := range keys {
			w.known[k] = waitedHolder{holder: d.Engine.HolderElsewhere(there[i]), at: now}
		}
		w.asking = false
	}
}
