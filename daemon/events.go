package daemon

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// events is the engine's observer. It writes to the log, the audit log, the history of views and the spans.
type events struct{ d *Daemon }

// Notices logs what has happened to locks, and remembers losses for views.
func (v events) Notices(ns []cache.Notice) {
	at := time.Now()
	for i := range ns {
		if ns[i].Kind == cache.NoticeLost {
			v.d.viewer.Lose(&ns[i], at)
		}
	}
	v.d.audit.Notices(ns, at)
}

// SessionBegins writes the audit line of a session that has said hello.
func (v events) SessionBegins(s *engine.Session) { v.d.audit.SessionBegins(s) }

// WaitCycle logs which owners wait for each other.
func (v events) WaitCycle(cycle []engine.CycleWait) {
	waits := make([]string, len(cycle))
	for n, w := range cycle {
		waits[n] = fmt.Sprintf("session %d (%s) owner %d waits for %q, held by session %d owner %d",
			w.Session, w.Client, w.Owner, v.d.audit.Key(w.Key), w.HolderSession, w.HolderOwner)
	}
	v.d.log.Warn("owners wait for each other in a cycle", zap.String("event", "wait_cycle"), zap.Strings("waits", waits))
}

// FencesMayFall logs that fences can fall.
func (v events) FencesMayFall(prefix, store string, base uint64) {
	v.d.log.Warn("keys go to a store that does not continue from the fences of this daemon: their fences can be smaller than before, "+
		"unless fence_epoch is at least the base", zap.String("event", "fences_may_fall"), zap.String("prefix", prefix),
		zap.String("store", store), zap.Uint64("base", base))
}
