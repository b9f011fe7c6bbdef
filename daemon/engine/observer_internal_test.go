package engine

import "github.com/locksidecar/locksidecar/cache"

// ignore is an observer that ignores everything.
type ignore struct{}

func (ignore) Notices([]cache.Notice)               {}
func (ignore) SessionBegins(*Session)               {}
func (ignore) SpanEnds(*Span)                       {}
func (ignore) WaitCycle([]CycleWait)                {}
func (ignore) FencesMayFall(string, string, uint64) {}
func (ignore) Unlocked(*cache.Held, Peer)           {}
func (ignore) UnlockDenied(Peer)                    {}

// onFall is an observer that is told of fences that may fall.
type onFall struct {
	ignore
	fall func(prefix, store string, base uint64)
}

func (o onFall) FencesMayFall(prefix, store string, base uint64) { o.fall(prefix, store, base) }
