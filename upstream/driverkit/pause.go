package driverkit

import (
	"context"
	"math/rand/v2"
	"time"
)

// Jitter returns a random duration between half of d and one and a half times d.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// Sleep waits for d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Backoff is the pause between failed attempts. It doubles from Min to Max and has jitter, so
// that the daemons of many hosts do not retry at the same moment.
type Backoff struct {
	Min, Max time.Duration
	next     time.Duration
}

// Reset makes the next pause Min again.
func (b *Backoff) Reset() { b.next = 0 }

// Wait waits for the next pause. It returns false if ctx ends first.
func (b *Backoff) Wait(ctx context.Context) bool {
	pause := max(b.next, b.Min)
	b.next = min(2*pause, b.Max)
	return Sleep(ctx, Jitter(pause))
}
