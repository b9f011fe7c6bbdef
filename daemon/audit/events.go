package audit

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// Rare events, which are logged at once.

// WaitCycle logs which owners wait for each other.
func (l *Log) WaitCycle(cycle []engine.CycleWait) {
	waits := make([]string, len(cycle))
	for n, w := range cycle {
		waits[n] = fmt.Sprintf("session %d (%s) owner %d waits for %q, held by session %d owner %d",
			w.Session, w.Client, w.Owner, l.Key(w.Key), w.HolderSession, w.HolderOwner)
	}
	l.cfg.Log.Warn("owners wait for each other in a cycle",
		zap.String("event", "wait_cycle"), zap.Strings("waits", waits))
}

// FencesMayFall logs that fences can fall.
func (l *Log) FencesMayFall(prefix, store string, base uint64) {
	l.cfg.Log.Warn("keys go to a store that does not continue from the fences of this daemon: "+
		"their fences can be smaller than before, unless fence_epoch is at least the base",
		zap.String("event", "fences_may_fall"), zap.String("prefix", prefix),
		zap.String("store", store), zap.Uint64("base", base))
}

// Unlocked logs that a hold was ended by force, on behalf of by.
func (l *Log) Unlocked(h *cache.Held, by engine.Peer) {
	l.cfg.Log.Warn("unlocked by force", sessionFields(engine.SessionOf(h.Session),
		zap.String("key", l.Key(h.Key)), zap.Stringer("mode", h.Mode),
		zap.Uint64("owner", h.Owner), zap.Uint64("fence", h.Fence), zap.String("event", "unlocked"),
		zap.Int("by_uid", by.UID), zap.Int("by_pid", by.PID))...)
}

// UnlockDenied logs that a client wanted to unlock by force and may not, at most once a second.
func (l *Log) UnlockDenied(by engine.Peer) {
	l.denied.Do(l.cfg.Clock(), func(skipped int) {
		l.cfg.Log.Warn("unlocking denied", zap.String("event", "unlock_denied"),
			zap.Int("by_uid", by.UID), zap.Int("by_pid", by.PID), zap.Int("skipped", skipped))
	})
}

// Throttled logs that requests of a user are delayed, at most once a second.
func (l *Log) Throttled(p engine.Peer, wait time.Duration) {
	l.throttled.Do(l.cfg.Clock(), func(skipped int) {
		l.cfg.Log.Warn("user throttled: request rate above limits.max_user_rate",
			zap.String("event", "user_throttled"), zap.Int("uid", p.UID), zap.Int("pid", p.PID),
			zap.Duration("for", wait), zap.Int("skipped", skipped))
	})
}

// Refused logs that a user has no more connections, at most once a second.
func (l *Log) Refused(p engine.Peer) {
	l.refused.Do(l.cfg.Clock(), func(skipped int) {
		l.cfg.Log.Warn("connection refused: its user has as many as limits.max_user_conns allows",
			zap.String("event", "user_refused"), zap.Int("uid", p.UID), zap.Int("pid", p.PID),
			zap.Int("skipped", skipped))
	})
}
