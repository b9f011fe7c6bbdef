package daemon

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/audit"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// storeSet has the stores of a daemon. Each has a pump, and goroutines that follow the store's
// hints and session.
type storeSet struct {
	d       *Daemon
	asking  sync.Mutex   // held while a query reads a store, so that one query runs at a time
	using   sync.RWMutex // held for reading until a query has ended; locked after asking
	queries atomic.Int64 // queries in progress or waiting

	mu      sync.Mutex      // not held during a wait
	all     []*runningStore // guarded by mu; changes only while Daemon.transferring is held
	started bool            // guarded by mu
	wg      sync.WaitGroup  // the goroutines of retire and closeIfUnused
}

// runningStore is one store that is in use, or is being closed.
type runningStore struct {
	StoreConfig
	lane   *engine.StoreLane
	upkeep *upstream.Upkeep
	pump   *upstream.Pump // nil before start

	failed, unregistered audit.Limiter // of the log messages about failures
	// dropped means that the configuration no longer names the store, which is closed once it has no
	// users. Guarded by Daemon.transferring.
	dropped bool

	// The goroutine that freezes the daemon uses these.
	paused bool // new requests are stopped
	left   bool // Mover.Leave has told the store that another process takes over
}

func newStoreSet(d *Daemon) *storeSet {
	s := &storeSet{d: d}
	d.engine.SetQueries(s.ask)
	return s
}

// ask runs a query of a store on a goroutine. One query runs at a time, because a query slows the
// store down for the requests of locks. The function that the query returns runs afterwards,
// concurrently with other queries, because it waits for other hosts and not for the store.
func (s *storeSet) ask(q engine.Query) {
	s.queries.Add(1)
	s.d.wg.Go(func() {
		defer s.queries.Add(-1)
		s.asking.Lock()
		s.using.RLock()
		defer s.using.RUnlock()
		if s.d.halted() {
			s.asking.Unlock()
			return
		}
		then := q(s.d.querying(), s.capabilities)
		s.asking.Unlock()
		then(s.d.unfrozen())
	})
}

// capabilities returns the capabilities of the lane's store. There are none if the store has been
// dropped.
func (s *storeSet) capabilities(sl *engine.StoreLane) (c upstream.Capabilities) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.all {
		if v.lane == sl {
			return v.Store.Capabilities()
		}
	}
	return c
}

// connections returns the number of connections to the store of that name; -1 when not known.
func (s *storeSet) connections(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.all {
		if count := v.Store.Capabilities().Connections; count != nil && v.lane.Name() == name {
			return count()
		}
	}
	return -1
}

// add adds stores to the engine. No requests are sent to them before start.
func (s *storeSet) add(list []StoreConfig) error {
	for _, st := range list {
		if _, err := s.addOne(st); err != nil {
			return err
		}
	}
	return nil
}

func (s *storeSet) addOne(st StoreConfig) (*runningStore, error) {
	sl, err := s.d.engine.AddStore(st.Name, st.Store.Info(), st.Store.Capabilities().Inline)
	if err != nil {
		return nil, err
	}
	sl.SetParts(st.Parts)
	v := &runningStore{StoreConfig: st, lane: sl}
	v.upkeep = v.newUpkeep(s.d)
	s.mu.Lock()
	s.all = append(s.all, v)
	started := s.started
	s.mu.Unlock()
	if started {
		v.start(s.d)
	}
	return v, nil
}

func (s *storeSet) start() {
	s.mu.Lock()
	s.started = true
	all := slices.Clone(s.all)
	s.mu.Unlock()
	for _, v := range all {
		v.start(s.d)
	}
}

// change adds the new stores of next, routes keys to them, and drops the stores that are not in
// next. After an error the goroutines of the new stores have ended, and the caller closes these.
// Daemon.transferring is held.
func (s *storeSet) change(next *Serving) error {
	list := next.Stores
	all := s.list()
	oldNames := make(map[*runningStore]string)
	for _, v := range all {
		oldNames[v] = v.lane.Name()
	}
	s.rename(all, list)
	var added []*runningStore
	err := func() error {
		for _, st := range list {
			if slices.ContainsFunc(all, func(v *runningStore) bool { return v.is(st) }) {
				continue
			}
			v, err := s.addOne(st)
			if err != nil {
				return err
			}
			added = append(added, v)
		}
		return s.d.engine.RouteAfter(next.Commit, next.Namespaces, next.Classes)
	}()
	if err != nil {
		for v, name := range oldNames {
			s.d.engine.Rename(v.lane, name)
		}
		for _, v := range added { // they have no users, because no key was ever routed there
			s.stopIfUnused(v)
		}
		return err
	}
	s.retire(func(v *runningStore) bool { return !slices.ContainsFunc(list, v.is) })
	return nil
}

// rename gives each running store in all the name that the configured stores in list have for it. A
// store that is not in list is dropped, and another store may have its name from now on. So a
// dropped store gets a name that no other store has, not even another dropped one.
func (s *storeSet) rename(all []*runningStore, list []StoreConfig) {
	taken := make(map[string]bool)
	for _, st := range list {
		taken[st.Name] = true
	}
	for _, v := range all {
		if i := slices.IndexFunc(list, v.is); i >= 0 {
			s.d.engine.Rename(v.lane, list[i].Name)
			continue
		}
		name := v.Name + " (leaving)"
		for n := 2; taken[name]; n++ {
			name = fmt.Sprintf("%s (leaving %d)", v.Name, n)
		}
		taken[name] = true
		s.d.engine.Rename(v.lane, name)
	}
}

// is reports whether st is the same store.
func (v *runningStore) is(st StoreConfig) bool { return st.Store == v.Store }

// closeDropped closes the unused stores that the configuration no longer names. It fails if one
// of them still has users: another process cannot take over then, because its configuration does
// not name that store. It waits up to transferWait for requests in flight of a store without
// leases. Daemon.transferring is held.
func (s *storeSet) closeDropped() error {
	end := time.Now().Add(transferWait)
	for _, v := range s.list() {
		for v.dropped && !s.closeIfUnused(v) {
			if n := s.d.engine.LeasesAt(v.lane); n > 0 || time.Now().After(end) {
				return fmt.Errorf("store %q is no longer in the configuration but still has "+
					"%d keys, or requests in flight; they must be released first", v.Name, n)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// retire drops the stores for which drop returns true: each is closed once it has no users. It
// takes the others back if an earlier call has dropped them. Daemon.transferring is held.
func (s *storeSet) retire(drop func(*runningStore) bool) {
	for _, v := range s.list() {
		was := v.dropped
		if v.dropped = drop(v); v.dropped && !was {
			s.wg.Go(func() { s.closeWhenUnused(v) })
		}
	}
}

// closeWhenUnused closes a dropped store once it has no users. It also returns when a reload has
// taken the store back, or when the daemon ends.
func (s *storeSet) closeWhenUnused(v *runningStore) {
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for !s.tryClose(v) {
		select {
		case <-poll.C:
		case <-v.upkeep.Done():
			return
		}
	}
}

// tryClose closes a dropped store if it has no users. It returns false if it has to be called
// again. It needs Daemon.transferring for two reasons. A reload must find the store either in use
// or closed. And during a takeover the store belongs to the offer, and its goroutines are stopped.
func (s *storeSet) tryClose(v *runningStore) bool {
	if !s.d.transferring.TryLock() {
		return false
	}
	defer s.d.transferring.Unlock()
	return !v.dropped || s.closeIfUnused(v)
}

// closeIfUnused stops a store and closes it on another goroutine. It returns false, and does
// nothing, if the store has users. Daemon.transferring is held.
func (s *storeSet) closeIfUnused(v *runningStore) bool {
	if !s.stopIfUnused(v) {
		return false
	}
	v.dropped = false
	s.wg.Go(func() { // Close may wait for a reload, which may wait for transferring
		s.using.Lock() // waits for the queries that found the store
		//lint:ignore SA2001 see above
		s.using.Unlock()
		if v.Close != nil {
			v.Close()
		}
		s.d.log.Info("store closed: a reload removed it, and it has no locks left",
			zap.String("event", "store_left"), zap.String("store", v.Name))
	})
	return true
}

// stopIfUnused removes a store from the engine and ends its goroutines. It returns false, and
// does nothing, if the store has users. Daemon.transferring is held.
func (s *storeSet) stopIfUnused(v *runningStore) bool {
	if !s.d.engine.DropStore(v.lane) {
		return false
	}
	s.mu.Lock()
	s.all = slices.DeleteFunc(s.all, func(o *runningStore) bool { return o == v })
	s.mu.Unlock()
	v.end()
	return true
}

// close ends all stores.
func (s *storeSet) close() {
	s.mu.Lock()
	all := s.all
	s.all = nil
	s.mu.Unlock()
	for _, v := range all {
		v.end()
	}
	s.wg.Wait()
	for _, v := range all {
		if v.Close != nil {
			v.Close()
		}
	}
}

// start starts the goroutines of the store.
func (v *runningStore) start(d *Daemon) {
	log := d.log.With(zap.String("store", v.Name))
	v.pump = upstream.NewPump(v.Store, d.clock, upstream.Observer{
		Deliver: d.engine.Deliver,
		Failed: func(err error) {
			v.failed.Do(d.clock(), func(skipped int) {
				log.Warn("store failed", zap.String("event", "store_failed"), zap.Error(err),
					zap.Int("skipped", skipped))
			})
		},
		Down: func(err error) {
			log.Error("store is down", zap.String("event", "store_down"), zap.Error(err))
			d.engine.StoreDown(v.lane, err)
		},
		Up: func() {
			log.Info("store is up again", zap.String("event", "store_up"))
			d.engine.StoreUp(v.lane)
		},
	})
	v.pump.Suspect() // the store may have been opened without a connection
	v.pump.Run(v.lane.Main())
	v.pump.RunPatient(v.lane.Renewals())
	if v.lane.Info().Pair {
		v.pump.RunAlways(v.lane.Ends())
	}
	if a := v.Store.Capabilities().Answerer; a != nil {
		a.Answer(func(key string, mode cache.Mode, tokens []uint64) []int64 {
			return d.engine.HeldFor(v.lane, key, mode == cache.Permit, tokens)
		})
	}
	v.upkeep.Start()
}

// newUpkeep connects the store's upkeep with the engine and the log.
func (v *runningStore) newUpkeep(d *Daemon) *upstream.Upkeep {
	log := d.log.With(zap.String("store", v.Name))
	return upstream.NewUpkeep(v.Store, upstream.Use{
		Hint: func(h upstream.Hint) { d.engine.Hint(v.lane, h) },
		Session: func(n upstream.Session) {
			d.engine.StoreSession(v.lane, n)
			if n.Lost {
				v.pump.Suspect()
			}
		},
		Known: func(key string, token uint64) bool { return d.engine.Known(v.lane, key, token) },
		Swept: func(removed int) {
			log.Warn("removed leases and queue entries of unanswered requests",
				zap.String("event", "swept"), zap.Int("removed", removed))
		},
		SweepFailed: func(err error) {
			v.failed.Do(d.clock(), func(skipped int) {
				log.Warn("sweep failed", zap.String("event", "sweep_failed"),
					zap.Error(fmt.Errorf("sweep: %w", err)), zap.Int("skipped", skipped))
			})
		},
		Entry: d.engine.Self(), Down: v.lane.Down,
		InUse: func() bool { return d.engine.LeasesAt(v.lane) > 0 },
		RegisterFailed: func(err error) {
			v.unregistered.Do(d.clock(), func(skipped int) {
				log.Warn("cannot write this daemon's entry to the store; "+
					"other hosts may not see this host's name",
					zap.String("event", "register_failed"), zap.Error(err), zap.Int("skipped",
						skipped))
			})
		},
	})
}

// end ends a store's goroutines.
func (v *runningStore) end() {
	v.upkeep.Close()
	if v.pump != nil {
		v.pump.Close()
	}
}
