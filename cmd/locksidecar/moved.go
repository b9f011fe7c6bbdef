package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// needsByStore returns the need that each open store was opened for.
func (all *openStores) needsByStore() map[upstream.Store]*need {
	all.mu.Lock()
	defer all.mu.Unlock()
	needs := make(map[upstream.Store]*need, len(all.open))
	for key, st := range all.open {
		needs[st] = all.needs[key]
	}
	return needs
}

// shares reports whether d and o have a store in common.
func (d *need) shares(o *need) bool { return share(d.plans, o.plans) }

// share reports whether a and b have a store in common.
func share(a, b []*plan) bool {
	return slices.ContainsFunc(a, func(p *plan) bool {
		return slices.ContainsFunc(b, func(q *plan) bool { return p.place == q.place })
	})
}

// refuseMoved fails if p takes a store away from a lock that is held there alone, although its key
// is now in that store and in another one. Hosts that use the other store could then get the lock.
func (s *server) refuseMoved(p *proposal) error {
	var first, store string
	n, needs := 0, s.stores.needsByStore()
	for _, m := range s.Moved() {
		from, to := needs[m.From], needs[m.To]
		if from == nil || to == nil || !from.shares(to) || len(from.plans) >= len(to.plans) {
			continue
		}
		if _, _, plans := storeOf(p.conf, p.conf.Space(m.Key), p.plans); !share(from.plans, plans) {
			if n++; n == 1 {
				first, store = m.Key, from.name
			}
		}
	}
	if n == 0 {
		return nil
	}
	if s.conf.Log.Keys == "hashed" {
		first = "(hashed)"
	}
	return exit(exitTryAgain, "%d locks are held in store %s alone, the first of them %s: they "+
		"were taken before their keys were in both stores; reload again when `locksidecar "+
		"status` counts none", n, store, first)
}

// warnMoved logs which locks are still held in a store that their keys have left.
func (s *server) warnMoved() {
	type way struct{ from, to *need }
	count, needs := make(map[way]int), s.stores.needsByStore()
	for _, m := range s.Moved() {
		count[way{needs[m.From], needs[m.To]}]++
	}
	for w, n := range count {
		if w.from == nil || w.to == nil {
			continue // just released
		}
		fields := []zap.Field{zap.Int("locks", n), zap.String("store", w.from.name),
			zap.String("new_store", w.to.name)}
		switch {
		case !w.from.shares(w.to):
			s.log.Warn("locks are held in a store that their keys have left: until they are "+
				"released, hosts that use the new store can get them, too",
				append(fields, zap.String("event", "locks_exposed"))...)
		case len(w.from.plans) < len(w.to.plans):
			s.log.Info("locks are held that were taken before their keys were in both stores: "+
				"begin the next rollout when `locksidecar status` counts none",
				append(fields, zap.String("event", "locks_stay"))...)
		}
	}
}

// movedView counts the locks of this host in a store that their keys have left.
type movedView struct {
	Store string `json:"store"`
	Locks int64  `json:"locks"`
}

// askMoved asks the admin socket which locks are in a store that their keys have left. Without an
// answer, Moved stays nil.
func (s *status) askMoved(ctx context.Context) {
	c := newAdminClient(s.Socket)
	defer c.Close()
	v, err := c.view(ctx, engine.ViewQuery{Limit: 1})
	if err != nil {
		s.movedErr = err
		return
	}
	s.Moved = []movedView{}
	for _, st := range v.Stores {
		if st.Moved > 0 {
			s.Moved = append(s.Moved, movedView{st.Name, st.Moved})
		}
	}
}

// movedText returns Moved in words.
func (s *status) movedText() string {
	switch {
	case s.Moved == nil && s.movedErr != nil:
		return "not known: " + s.movedErr.Error()
	case len(s.Moved) == 0:
		return "every lock is at the store of its key"
	}
	var parts []string
	for _, m := range s.Moved {
		parts = append(parts, fmt.Sprintf("%d still at store %s, which their keys have left",
			m.Locks, m.Store))
	}
	return strings.Join(parts, "; ")
}
