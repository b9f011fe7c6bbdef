package engine

import "github.com/locksidecar/locksidecar/cache"

// Observer receives the events of an engine. Its methods must not block. The engine calls them
// without a shard's mutex, and concurrently.
type Observer interface {
	// Notices reports lost holds, and with SetAudit also grants, refusals and releases.
	Notices(ns []cache.Notice)
	// SessionBegins reports that the client of a session has said hello.
	SessionBegins(s *Session)
	// SpanEnds reports a traced acquire that has ended. The session's mutex is held.
	SpanEnds(x *Span)
	// WaitCycle reports owners that wait for each other, each for the next one and the last for the
	// first.
	WaitCycle(waits []CycleWait)
	// FencesMayFall reports that keys with a prefix move to a store whose new bases may be smaller
	// than base, which this host has seen for these keys.
	FencesMayFall(prefix, store string, base uint64)
	// Unlocked reports a hold that was ended by force, on behalf of by.
	Unlocked(h *cache.Held, by Peer)
	// UnlockDenied reports a client that was not allowed to unlock by force.
	UnlockDenied(by Peer)
}

// CycleWait is one wait in a cycle of owners.
type CycleWait struct {
	Session       uint64
	Owner         uint64
	Client        string // its name and label
	Key           string // the key that the owner waits for
	HolderSession uint64
	HolderOwner   uint64
}

// Observe sets the observer. It is called before the first session. Without an observer, the engine
// does not look for cycles.
func (e *Engine) Observe(o Observer) { e.observer = o }

// SetAudit selects the events for Observer.Notices: grants, refusals, releases and losses, or
// losses alone.
func (e *Engine) SetAudit(on bool) {
	e.audit.Store(on)
	for i := range e.shards {
		sh := e.lock(i)
		sh.out.Audit = on
		sh.mu.Unlock()
	}
}
