package daemon

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
)

const (
	registerEvery  = 30 * time.Second  // between two writes of a daemon's entry in a store
	registerTTL    = 3 * registerEvery // of an entry
	registerSoon   = time.Second       // before a failed write is repeated for the first time
	unregisterTime = time.Second       // that the store has to remove the entry when the daemon ends
)

// registration returns this daemon's entry, which other hosts read.
func registration(cfg *Config) upstream.Registration {
	r := upstream.Registration{Host: cfg.Host, Version: cfg.Version, PID: os.Getpid(), Started: time.Now().UnixMilli()}
	if r.Host == "" {
		r.Host, _ = os.Hostname()
	}
	return r
}

// register keeps the daemon's entry in a store until the store is closed. Nothing waits for it, because a
// daemon works without an entry: other hosts just do not see its name.
func (v *openStore) register(d *Daemon, r upstream.Registrar, log *zap.Logger) {
	if d.engine.Self().Host == "" {
		return
	}
	written, wait, fails := false, time.Duration(0), 0
	for {
		select {
		case <-time.After(wait):
		case <-v.ctx.Done():
			if written {
				v.unregister(d, r)
			}
			return
		}
		if v.lane.Down() != nil {
			wait = registerSoon
			continue
		}
		err := v.unlessFrozen(func(ctx context.Context) error { return r.Register(ctx, d.engine.Self(), registerTTL) })
		if err == nil {
			written, fails, wait = true, 0, registerEvery*9/10+rand.N(registerEvery/5)
			continue
		}
		wait = min(registerSoon<<fails, registerEvery) * 4 / 5
		wait += rand.N(wait / 2)
		if fails = min(fails+1, 10); fails > 1 && v.ctx.Err() == nil { // the first try may come before the store session
			v.unregistered.Do(d.clock(), func(skipped int) {
				log.Warn("cannot write this daemon's entry to the store; other hosts may not see this host's name",
					zap.String("event", "register_failed"), zap.Error(err), zap.Int("skipped", skipped))
			})
		}
	}
}

// unregister removes the entry of a daemon that ends. The entry stays until it expires if the store is down,
// or if leases stay at the store: the entry names their holder.
func (v *openStore) unregister(d *Daemon, r upstream.Registrar) {
	if v.lane.Down() != nil || d.engine.LeasesAt(v.lane) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), unregisterTime)
	defer cancel()
	_ = r.Unregister(ctx) // after an error the entry expires
}

// unlessFrozen makes a short request to the store. It waits while the daemon is frozen, and a freeze cancels
// the request's context.
func (v *openStore) unlessFrozen(do func(ctx context.Context) error) error {
	v.sweeping.Lock()
	defer v.sweeping.Unlock()
	ctx, stop := context.WithTimeout(v.ctx, max(time.Second, v.lane.Info().Timeout))
	defer stop()
	cancel := context.CancelFunc(stop)
	v.stopSweep.Store(&cancel)
	defer v.stopSweep.Store(nil)
	return do(ctx)
}
