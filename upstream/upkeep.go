package upstream

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Upkeep does the work for a store that no request causes. It passes on the hints and the news of
// store sessions, sweeps the store, and keeps this daemon's entry there. It owns a goroutine for
// each.
type Upkeep struct {
	store Store
	use   Use
	ctx   context.Context // of the goroutines
	end   context.CancelFunc
	wg    sync.WaitGroup

	gate    sync.Mutex // held while news is passed on, and between Pause and Resume
	asking  sync.Mutex // held while the store is asked, and between Pause and Resume
	stopAsk atomic.Pointer[context.CancelFunc]
}

// Use connects an Upkeep with the user of the store. Its functions are called on the goroutines of
// the Upkeep.
type Use struct {
	Hint    func(Hint)
	Session func(Session)

	Known       func(key string, token uint64) bool // see Sweeper
	Swept       func(removed int)
	SweepFailed func(error)

	Entry          Registration // of this daemon; none without a Host
	Down           func() error // why the store is down; nil while it is up
	InUse          func() bool  // whether this daemon has leases at the store
	RegisterFailed func(error)
}

const (
	sweepEvery     = time.Minute
	registerEvery  = 30 * time.Second  // between two writes of the entry
	registerTTL    = 3 * registerEvery // of the entry
	registerSoon   = time.Second       // before a failed write is repeated for the first time
	unregisterTime = time.Second       // the limit for removing the entry at the end
)

// NewUpkeep returns the upkeep of a store. Start starts its goroutines.
func NewUpkeep(s Store, use Use) *Upkeep {
	u := &Upkeep{store: s, use: use}
	u.ctx, u.end = context.WithCancel(context.Background())
	return u
}

// Start starts the goroutines.
func (u *Upkeep) Start() {
	can := u.store.Capabilities()
	u.wg.Go(u.follow)
	if r := can.Registrar; r != nil && u.use.Entry.Host != "" {
		u.wg.Go(func() { u.register(r) })
	}
	if s := can.Sweeper; s != nil {
		u.wg.Go(func() { u.sweep(s) })
	}
}

// Done returns a channel that is closed when Close is called.
func (u *Upkeep) Done() <-chan struct{} { return u.ctx.Done() }

// Close ends the goroutines and waits for them. The entry is removed if no leases stay at the
// store.
func (u *Upkeep) Close() {
	u.end()
	u.wg.Wait()
}

// Pause stops everything until Resume. It cancels a request that is in progress.
func (u *Upkeep) Pause() {
	for !u.asking.TryLock() {
		if stop := u.stopAsk.Load(); stop != nil {
			(*stop)()
		}
		time.Sleep(time.Millisecond)
	}
	u.gate.Lock()
}

// Resume ends a Pause.
func (u *Upkeep) Resume() {
	u.gate.Unlock()
	u.asking.Unlock()
}

// ask makes a request of the store. It waits while u is paused. stopped reports whether Pause or
// Close has canceled the request.
func (u *Upkeep) ask(do func(ctx context.Context) error) (stopped bool, err error) {
	u.asking.Lock()
	defer u.asking.Unlock()
	ctx, stop := context.WithCancel(u.ctx)
	defer stop()
	u.stopAsk.Store(&stop)
	defer u.stopAsk.Store(nil)
	err = do(ctx)
	return ctx.Err() != nil, err
}

// follow passes on the store's hints and session news.
func (u *Upkeep) follow() {
	hints, sessions := u.store.Hints(), u.store.Sessions()
	for {
		select {
		case h, ok := <-hints:
			if !ok {
				hints = nil
				continue
			}
			u.gate.Lock()
			u.use.Hint(h)
			u.gate.Unlock()
		case n, ok := <-sessions:
			if !ok {
				sessions = nil
				continue
			}
			u.gate.Lock()
			u.use.Session(n)
			u.gate.Unlock()
		case <-u.ctx.Done():
			return
		}
	}
}

// sweep removes leases and queue entries that the tables do not know, at regular intervals.
func (u *Upkeep) sweep(s Sweeper) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-u.ctx.Done():
			return
		}
		removed := 0
		stopped, err := u.ask(func(ctx context.Context) (err error) {
			removed, err = s.Sweep(ctx, u.use.Known)
			return err
		})
		switch {
		case err != nil && !stopped:
			u.use.SweepFailed(err)
		case removed > 0:
			u.use.Swept(removed)
		}
	}
}

// register keeps the daemon's entry in the store. Nothing waits for it, because a daemon works
// without an entry: other hosts just do not see its name.
func (u *Upkeep) register(r Registrar) {
	written, wait, fails := false, time.Duration(0), 0
	for {
		select {
		case <-time.After(wait):
		case <-u.ctx.Done():
			if written {
				u.unregister(r)
			}
			return
		}
		if u.use.Down() != nil {
			wait = registerSoon
			continue
		}
		_, err := u.ask(func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, max(time.Second, u.store.Info().Timeout))
			defer cancel()
			return r.Register(ctx, u.use.Entry, registerTTL)
		})
		if err == nil {
			written, fails, wait = true, 0, registerEvery*9/10+rand.N(registerEvery/5)
			continue
		}
		wait = min(registerSoon<<fails, registerEvery) * 4 / 5
		wait += rand.N(wait / 2)
		// The first try may come before the store session.
		if fails = min(fails+1, 10); fails > 1 && u.ctx.Err() == nil {
			u.use.RegisterFailed(err)
		}
	}
}

// unregister removes the entry at the end. The entry stays until it expires if the store is down,
// or if leases stay at the store: the entry names their holder.
func (u *Upkeep) unregister(r Registrar) {
	if u.use.Down() != nil || u.use.InUse() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), unregisterTime)
	defer cancel()
	_ = r.Unregister(ctx) // after an error the entry expires
}
