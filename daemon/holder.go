package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// An inspect with the flag holders is answered with the holders' names. This host's holders come from its
// table. Those of other hosts come from the store, where each daemon has an entry (see register.go).

const (
	maxHolders = 64              // in one answer
	holderTime = 2 * time.Second // that the store has for all queries of one answer
	holderSize = 2048            // bytes of one holder in a frame, at most
)

// inspectHolders answers an inspect with the flag holders. If the answer needs the store, which may be slow,
// another goroutine sends it.
func (s *Session) inspectHolders(q *protocol.Request, sp *space, now int64, a *aftermath) {
	e, id, key, mode := s.engine, q.ID, string(q.Key), cache.Mode(q.Mode)
	limit := min(maxHolders, max(1, s.frameLimit()/holderSize))
	st := e.heldHere(key, mode, limit, now)
	if e.ask == nil || st.Held == protocol.HeldHere && st.Mode == protocol.Exclusive {
		s.write(a, func(b []byte) []byte { return protocol.AppendInspected(b, id, &st) })
		return
	}
	if s.questions.Add(1) > questionsMost {
		s.questions.Add(-1)
		s.refuse(id, protocol.Limit, "too many concurrent store queries on this session", a)
		return
	}
	u := sp.Unit
	e.ask(func(lister func(*Unit) upstream.Lister) {
		defer s.questions.Add(-1)
		a := getAftermath()
		defer putAftermath(a)
		defer func() { e.finish(a, e.clock(), nil) }()
		st := e.heldHere(key, mode, limit, e.clock()) // again, because this goroutine may have started late
		ctx, cancel := context.WithTimeout(context.Background(), holderTime)
		defer cancel()
		if err := e.addHolders(ctx, u, lister(u), key, mode, limit, &st); err != nil && st.Held == protocol.HeldNot {
			s.refuse(id, protocol.Unavailable, fmt.Sprintf("store %s: %v", u.Name(), err), a)
			return
		}
		s.write(a, func(b []byte) []byte { return protocol.AppendInspected(b, id, &st) })
	})
}

// heldHere returns the state of a key in this host's table.
func (e *Engine) heldHere(key string, mode cache.Mode, limit int, now int64) protocol.State {
	sh := e.lock(shardOf(key))
	held, all, waiters := sh.table.HoldersOf(key, mode == cache.Permit, limit, now)
	sh.mu.Unlock()
	st := protocol.State{Holders: uint64(all), Waiters: uint64(waiters), Left: -1, Mode: protocol.Mode(mode)}
	if mode != cache.Permit {
		st.Mode = protocol.Exclusive
	}
	for i := range held {
		h := &held[i]
		left := millis(max(0, h.Until-now))
		if st.Held == protocol.HeldNot {
			st.Held, st.Mode, st.Fence, st.Left = protocol.HeldHere, protocol.Mode(h.Mode), h.Fence, left
		}
		st.Left, st.Fence = max(st.Left, left), max(st.Fence, h.Fence)
		st.By = append(st.By, e.holderHere(h, now))
	}
	return st
}

// holderHere names the holder of a hold on this host.
func (e *Engine) holderHere(h *cache.Held, now int64) protocol.Holder {
	w := whoIs(h.Session)
	one := protocol.Holder{Kind: protocol.HolderHere,
		Host: e.self.Host, Version: e.self.Version, Daemon: uint64(e.self.PID), Started: e.self.Started,
		Held: millis(max(0, now-h.Since)), Left: millis(max(0, h.Until-now)), Fence: h.Fence,
		Session: w.Session, PID: uint64(max(0, w.PID)), UID: int64(w.UID), Client: w.Client}
	if h.Forced {
		one.Note = "unlocked by force"
	}
	return one
}

// heldFor answers another daemon that asks for how long this one has held a key: see upstream.HeldFor.
func (e *Engine) heldFor(u *Unit, key string, permit bool, tokens []uint64) []int64 {
	sh := e.lock(shardOf(key))
	defer sh.mu.Unlock()
	return sh.table.HeldFor(u.core, key, permit, tokens, e.clock())
}

// addHolders adds the holders that the store lists to st, which has those of this host.
func (e *Engine) addHolders(ctx context.Context, u *Unit, store upstream.Lister, key string, mode cache.Mode,
	limit int, st *protocol.State) error {
	if (*e.units.Load())[u.core.ID] != u {
		return errors.New("a reload has removed it")
	}
	r, ok := store.(upstream.Registrar)
	if !ok || limit <= len(st.By) {
		return nil // the store has no other hosts, or st is full
	}
	locks, err := r.Holders(ctx, key, mode, limit)
	if err != nil {
		return err
	}
	names, err := r.Registered(ctx, upstream.Daemons(locks))
	if err != nil && len(names) == 0 {
		return err
	}
	for i := range locks {
		l := &locks[i]
		if l.Mine && st.Holders > 0 {
			continue // the table knows more
		}
		if st.Held == protocol.HeldNot || st.Held == protocol.HeldThere && st.Left < millis(l.Left) {
			st.Held, st.Mode, st.Left = protocol.HeldThere, protocol.Mode(l.Mode), millis(l.Left)
		}
		if len(st.By) < limit {
			st.By = append(st.By, e.holderThere(l, names))
		}
	}
	return nil
}

// holderThere names the holder of a lock that the store lists. names has the entries of daemons.
func (e *Engine) holderThere(l *upstream.Lock, names map[string]upstream.Registration) protocol.Holder {
	h := protocol.Holder{Kind: protocol.HolderUnregistered, Held: -1, Left: millis(l.Left), UID: -1,
		Name: clip(l.Holder), Note: clip(l.Note)}
	if l.Held > 0 {
		h.Held = millis(l.Held)
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
