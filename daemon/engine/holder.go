package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// An inspect with the flag holders is answered with the holders' names. This host's holders come
// from its table. The holders on other hosts come from the store, where each daemon has an entry
// (see upstream.Registrar).

// MaxHolders limits the holders of a key in one answer.
const MaxHolders = 64

const (
	holderTime = 2 * time.Second // how long all queries for one answer may take at the store
	holderSize = 2048            // the largest size of one holder in a frame, in bytes
)

// inspectHolders answers an inspect with the flag holders. If the answer needs the store, which may
// be slow, another goroutine sends it.
func (s *Session) inspectHolders(q *protocol.Request, rt *route, now int64, a *followUp) {
	e, id, key, mode := s.engine, q.ID, string(q.Key), q.Mode
	limit := min(MaxHolders, max(1, s.frameLimit()/holderSize))
	st := e.heldHere(key, mode, limit, now)
	if e.ask == nil || st.Held == protocol.HeldHere && st.Mode == protocol.Exclusive {
		s.write(a, func(b []byte) []byte { return protocol.AppendInspected(b, id, &st) })
		return
	}
	if s.queries.Add(1) > maxQueries {
		s.queries.Add(-1)
		s.refuse(id, protocol.Limit, "too many concurrent store queries on this session", a)
		return
	}
	sl := rt.StoreLane
	e.ask(func(ctx context.Context, of CapabilitiesOf) (then func(context.Context)) {
		st := e.heldHere(key, mode, limit, e.clock()) // again: this goroutine may have started late
		ctx, cancel := context.WithTimeout(ctx, holderTime)
		defer cancel()
		var there HoldersThere
		var err error
		if len(st.By) < limit {
			if there, err = e.HoldersAt(ctx, sl, of(sl).Registrar, key, mode,
				limit); err != nil {
				err = queryError(ctx, err)
			}
		}
		return func(ctx context.Context) {
			defer s.queries.Add(-1)
			a := getFollowUp()
			defer putFollowUp(a)
			defer func() { e.finish(a, e.clock(), nil) }()
			if err != nil && st.Held == protocol.HeldNot {
				s.refuse(id, protocol.Unavailable, fmt.Sprintf("store %s: %v", sl.Name(), err), a)
				return
			}
			e.AskDaemons(ctx, there)
			e.addHolders(&st, there, limit)
			s.write(a, func(b []byte) []byte { return protocol.AppendInspected(b, id, &st) })
		}
	})
}

// heldHere returns the state of a key in this host's table.
func (e *Engine) heldHere(key string, mode protocol.Mode, limit int, now int64) protocol.State {
	sh := e.lock(shardOf(key))
	held, all, waiters := sh.table.HoldersOf(key, mode == protocol.Permit, limit, now)
	sh.mu.Unlock()
	st := protocol.State{Holders: uint64(all), Waiters: uint64(waiters), Left: -1, Mode: mode}
	if mode != protocol.Permit {
		st.Mode = protocol.Exclusive
	}
	for i := range held {
		h := &held[i]
		left := Millis(max(0, h.Until-now))
		if st.Held == protocol.HeldNot {
			st.Held, st.Mode, st.Fence, st.Left = protocol.HeldHere, h.Mode, h.Fence, left
		}
		st.Left, st.Fence = max(st.Left, left), max(st.Fence, h.Fence)
		st.By = append(st.By, e.holderHere(h, now))
	}
	return st
}

// holderHere names the holder of a hold on this host.
func (e *Engine) holderHere(h *cache.Held, now int64) protocol.Holder {
	w := WhoIs(h.Session)
	one := protocol.Holder{Kind: protocol.HolderHere,
		Host: e.self.Host, Version: e.self.Version, Daemon: uint64(e.self.PID),
		Started: e.self.Started,
		Held:    Millis(max(0, now-h.Since)), Left: Millis(max(0, h.Until-now)), Fence: h.Fence,
		Session: w.Session, PID: uint64(max(0, w.PID)), UID: int64(w.UID), Client: w.Client}
	if h.Forced {
		one.Note = "unlocked by force"
	}
	if h.Detached {
		one.Note = "detached"
	}
	return one
}

// HeldFor answers another daemon that asks for how long this one has held a key: see
// upstream.HeldFor.
func (e *Engine) HeldFor(sl *StoreLane, key string, permit bool, tokens []uint64) []int64 {
	sh := e.lock(shardOf(key))
	defer sh.mu.Unlock()
	return sh.table.HeldFor(sl.core, key, permit, tokens, e.clock())
}

// HoldersThere has the holders of one key that a store lists.
type HoldersThere struct {
	upstream.Asked
	names map[string]upstream.Registration // of their daemons
	at    int64                            // when they were read
}

// HoldersAt reads up to limit holders from the store. r is nil for a store without other hosts.
func (e *Engine) HoldersAt(ctx context.Context, sl *StoreLane, r upstream.Registrar,
	key string, mode protocol.Mode, limit int,
) (h HoldersThere, err error) {
	if (*e.storeLanes.Load())[sl.core.ID] != sl {
		return h, errors.New("a reload has removed it")
	}
	if r == nil {
		return h, nil
	}
	h.Key, h.Mode = key, mode
	if h.Locks, err = r.Holders(ctx, key, mode, limit); err != nil {
		return h, err
	}
	h.at = e.clock()
	if h.names, err = r.Registered(ctx, upstream.Daemons(h.Locks)); err != nil &&
		len(h.names) == 0 {
		h.Locks = nil
		return h, err
	}
	return h, nil
}

// AskDaemons sets the field Held of all these locks, as of now. It asks all daemons at once, and
// waits for at most upstream.AnswerTime. Other queries may run meanwhile.
func (e *Engine) AskDaemons(ctx context.Context, all ...HoldersThere) {
	asked := make([]upstream.Asked, len(all))
	for i := range all {
		asked[i] = all[i].Asked
	}
	upstream.Ask(ctx, asked)
	now := e.clock()
	for i := range all {
		for j := range all[i].Locks {
			if l := &all[i].Locks[j]; l.Held > 0 && l.Asker == nil {
				l.Held += max(0, now-all[i].at)
			}
		}
	}
}

// addHolders adds the holders that the store lists to st, which has the holders on this host. st
// gets at most limit holders.
func (e *Engine) addHolders(st *protocol.State, there HoldersThere, limit int) {
	for i := range there.Locks {
		l := &there.Locks[i]
		if l.Mine && st.Holders > 0 {
			continue // the table has more details
		}
		if st.Held == protocol.HeldNot || st.Held == protocol.HeldThere &&
			st.Left < Millis(l.Left) {
			st.Held, st.Mode, st.Left = protocol.HeldThere, l.Mode, Millis(l.Left)
		}
		if len(st.By) < limit {
			st.By = append(st.By, e.holderThere(l, there.names))
		}
	}
}

// holderThere names the holder of a lock that the store lists. names has the entries of daemons.
func (e *Engine) holderThere(
	l *upstream.Lock, names map[string]upstream.Registration,
) protocol.Holder {
	h := protocol.Holder{Kind: protocol.HolderUnregistered, Held: -1, Left: Millis(l.Left), UID: -1,
		Name: clip(l.Holder), Note: clip(l.Note)}
	if l.Held > 0 {
		h.Held = Millis(l.Held)
	}
	r, ok := names[l.Daemon]
	switch {
	case l.Foreign:
		h.Kind = protocol.HolderForeign
		return h
	case l.Mine:
		h.Kind, r, ok = protocol.HolderHere, e.self, true
	case ok:
		h.Kind = protocol.HolderDaemon
	}
	if ok {
		h.Host, h.Version, h.Daemon, h.Started = r.Host, r.Version, uint64(r.PID), r.Started
	}
	return h
}

// HolderElsewhere returns the first holder on another host, else one on this host; nil without any.
func (e *Engine) HolderElsewhere(there HoldersThere) (holder *protocol.Holder) {
	var st protocol.State
	e.addHolders(&st, there, MaxHolders)
	for i := range st.By {
		if holder == nil || holder.Kind == protocol.HolderHere {
			holder = &st.By[i]
		}
	}
	return holder
}
