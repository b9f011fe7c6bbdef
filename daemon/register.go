package daemon

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
)

// How often a daemon renews its entry in a store, how long an entry lasts without that, and how soon
// a failed write is repeated. One write per daemon in this time costs a store nothing.
const (
	registerEvery = 30 * time.Second
	registerTTL   = 3 * registerEvery
	registerSoon  = time.Second
	// unregisterTime bounds the removal when a daemon ends.
	unregisterTime = time.Second
)

// registration is what this daemon tells other hosts about itself.
func registration(cfg *Config) upstream.Registration {
	r := upstream.Registration{Host: cfg.Host, Version: cfg.Version, PID: os.Getpid(), Started: time.Now().UnixMilli()}
	if r.Host == "" {
		r.Host, _ = os.Hostname()
	}
	return r
}

// register keeps the daemon's entry in a store until the store is closed. Nothing waits for it: a
// daemon without an entry works as well, under no name.
func (v *served) register(d *Daemon, r upstream.Registrar, log *zap.Logger) {
	if d.engine.self.Host == "" {
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
		if v.unit.Down() != nil {
			wait = registerSoon
			continue
		}
		err := v.quietly(func(ctx context.Context) error { return r.Register(ctx, d.engine.self, registerTTL) })
		if err == nil {
			written, fails, wait = true, 0, registerEvery*9/10+rand.N(registerEvery/5)
			continue
		}
		wait = min(registerSoon<<fails, registerEvery) * 4 / 5
		wait += rand.N(wait / 2)
		if fails = min(fails+1, 10); fails > 1 && v.ctx.Err() == nil { // the first try may come before the store session
			v.unnamed.say(d.clock(), func(skipped int) {
				log.Warn("this daemon's entry in the store cannot be written; other hosts may not see its name",
					zap.String("event", "register_failed"), zap.Error(err), zap.Int("skipped", skipped))
			})
		}
	}
}

// unregister removes the entry of a daemon that ends. It stays, and expires, if leases stay that it
// names the holder of, or if the store is down.
func (v *served) unregister(d *Daemon, r upstream.Registrar) {
	if v.unit.Down() != nil || d.engine.leasesAt(v.unit) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), unregisterTime)
	defer cancel()
	_ = r.Unregister(ctx) // it expires otherwise
}

// quietly does something small at the store that must not happen while the daemon is frozen. A
// freeze cancels its context.
func (v *served) quietly(do func(ctx context.Context) error) error {
	v.sweeping.Lock()
	defer v.sweeping.Unlock()
	ctx, stop := context.WithTimeout(v.ctx, max(time.Second, v.unit.info.Timeout))
	defer stop()
	cancel := context.CancelFunc(stop)
	v.stopSweep.Store(&cancel)
	defer v.stopSweep.Store(nil)
	return do(ctx)
}
