package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// holdID is what a lost push names besides the fence.
type holdID struct {
	key   string
	owner uint64
}

// Hold is one grant that the client keeps account of: how long it may be relied
// upon, by what the daemon has stated and nothing else. Silence is not validity: a
// daemon that says nothing lets it run out.
type Hold struct {
	c     *Client
	key   string
	owner uint64
	next  *Hold // guarded by Client.mu: the same key and owner, taken again

	permit bool // of a semaphore

	mu       sync.Mutex
	grant    protocol.Grant // guarded by mu: the last heard
	deadline int64          // guarded by mu: the furthest validity that a grant stated, on our clock
	end      int64          // guarded by mu: a fixed hold's own end, 0 when watched
	seq      uint64         // guarded by mu: the first beat that means it; 0 before its grant
	over     error          // guarded by mu: why nothing is held any more
	released bool           // guarded by mu: its owner has released it after its end
	gone     chan struct{}  // closed with over
}

// errLate is the error of an acquire whose grant was past its deadline when it was read.
var errLate = &Error{Code: protocol.Unavailable, Msg: "the grant came after its validity was over"}

// Lock is like Acquire, and keeps track of the hold. The caller must end it with Release, even if it was
// lost. Until then an acquire of the key by the same owner fails with the error of the loss.
func (c *Client) Lock(ctx context.Context, a AcquireArgs) (*Hold, error) {
	h := c.newHold(a.Key, a.Owner)
	if h.permit = a.Permits > 0; !h.permit {
		if err := c.mayAcquire(ctx, a.Owner, a.Key); err != nil {
			return nil, err
		}
	}
	if _, err := c.acquire(ctx, &a, h); err != nil {
		return nil, err
	}
	if !h.Valid() && h.Err() == nil && h.giveUp() {
		_ = c.ReleaseQuiet(ReleaseArgs{Key: h.key, Owner: h.owner, Fence: h.Fence()})
		return nil, errLate
	}
	return h, nil
}

func (c *Client) newHold(key string, owner uint64) *Hold {
	return &Hold{c: c, key: key, owner: owner, gone: make(chan struct{})}
}

// granted takes in a grant or a renewal. It runs on the reader goroutine, so that
// beats and losses fall on the right side of it.
func (c *Client) granted(h *Hold, g *protocol.Grant) {
	h.mu.Lock()
	h.grant = *g
	h.deadline = max(h.deadline, c.clock.local(g.Deadline)) // what was stated stays true
	if g.End != 0 {                                         // replies may come in any order
		h.end = max(h.end, c.clock.local(g.End))
	}
	fresh := h.seq == 0
	if fresh {
		h.seq = c.beats.last() + 1
	}
	h.mu.Unlock()
	if !fresh {
		return
	}
	c.mu.Lock()
	err := c.err
	if err == nil { // from now on it can be lost
		id := holdID{h.key, h.owner}
		h.next, c.holds[id] = c.holds[id], h
	}
	c.mu.Unlock()
	if err != nil { // Close came in between
		h.finish(err)
	}
}

// notHeld ends all holds of the owner with this key and fence, because the daemon no longer has them. It runs
// on the reader goroutine.
func (c *Client) notHeld(key string, owner, fence uint64, why error) {
	var hit []*Hold
	c.mu.Lock()
	for h := c.holds[holdID{key, owner}]; h != nil; h = h.next {
		if h.Fence() == fence {
			hit = append(hit, h)
		}
	}
	for _, h := range hit {
		c.untrackLocked(h)
		c.keepLostLocked(h)
		h.finish(why) // before mu is free: no acquire of this owner may see the hold as valid
	}
	c.mu.Unlock()
}

// lost ends the holds that a lost push means. It runs on the reader goroutine.
func (c *Client) lost(l Lost) {
	c.notHeld(l.Key, l.Owner, l.Fence, &LostError{l.Reason})
	if c.opts.OnLost != nil {
		c.opts.OnLost(l)
	}
}

func (c *Client) untrackLocked(h *Hold) {
	id := holdID{h.key, h.owner}
	switch first := c.holds[id]; {
	case first == nil:
	case first == h && h.next == nil:
		delete(c.holds, id)
	case first == h:
		c.holds[id] = h.next
	default:
		for p := first; p.next != nil; p = p.next {
			if p.next == h {
				p.next = h.next
				return
			}
		}
	}
}

// finish ends the hold; the first reason stays.
func (h *Hold) finish(why error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over != nil {
		return false
	}
	h.over = why
	close(h.gone)
	return true
}

// Key returns the key that is held.
func (h *Hold) Key() string { return h.key }

// Owner returns the owner number that holds it.
func (h *Hold) Owner() uint64 { return h.owner }

// Fence returns the fencing token; 0 only for a degraded grant.
func (h *Hold) Fence() uint64 { return h.Grant().Fence }

// Grant returns the last grant heard for it, by acquire or renew.
func (h *Hold) Grant() protocol.Grant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grant
}

// Remaining returns how long the hold is valid for from now on, 0 when it is not.
// It reads the clock, and does not block.
func (h *Hold) Remaining() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over != nil {
		return 0
	}
	until := max(h.deadline, h.c.beats.furthest(h.seq))
	if h.end != 0 {
		until = min(until, h.end)
	}
	return max(0, time.Duration(until-now()))
}

// Valid says whether the hold may be relied upon now.
func (h *Hold) Valid() bool { return h.Remaining() > 0 }

// Gone is closed when the hold has ended by a release, a loss or the end of the
// connection; not when its validity runs out unsaid, for which see Watch.
func (h *Hold) Gone() <-chan struct{} { return h.gone }

// Err returns why nothing is held any more: a *LostError, ErrNotHeld from a
// renewal, an ErrClosed or ErrReleased. It is nil before Gone is closed.
func (h *Hold) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over
}

// watchStep bounds how long Watch sleeps: Go's timers stand still while the
// machine sleeps, the hold's clock does not.
const watchStep = 500 * time.Millisecond

// Watch blocks until the hold is no longer valid, and returns the reason: the error of Err, ErrExpired,
// or the loss of a fixed hold at its own end, even before the daemon reports that. If ctx ends first,
// Watch returns its error.
func (h *Hold) Watch(ctx context.Context) error {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-h.gone:
			return h.Err()
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		left := h.Remaining()
		if left == 0 {
			return h.lapsed()
		}
		t.Reset(min(left, watchStep))
	}
}

// Renew restarts the hold's TTL, with a new length unless ttl is 0. It blocks
// until the daemon has answered or ctx ends.
func (h *Hold) Renew(ctx context.Context, ttl time.Duration) error {
	if err := h.Err(); err != nil {
		return err
	}
	_, err := h.c.renew(ctx, h.key, h.owner, h.Fence(), ttl, h)
	return err
}

// Downgrade makes an exclusive hold a shared one. It blocks until the daemon has
// answered or ctx ends.
func (h *Hold) Downgrade(ctx context.Context) error {
	if err := h.Err(); err != nil {
		return err
	}
	_, err := h.c.downgrade(ctx, h.key, h.owner, h.Fence(), h)
	return err
}

// Release gives the hold up: from the call on it is not valid. It blocks until
// the daemon has answered or ctx ends; the release goes on all the same. Released
// twice, or after it was lost, it returns what it ended with. If the hold was ended by force, Release
// also tells the daemon, which keeps the key closed to others until then.
func (h *Hold) Release(ctx context.Context) error {
	if !h.giveUp() {
		why := h.Err()
		if h.c.forgetLost(h) && errors.Is(why, errForced) {
			_ = h.c.ReleaseQuiet(ReleaseArgs{Key: h.key, Owner: h.owner, Fence: h.Fence()})
		}
		return why
	}
	_, err := h.c.Release(ctx, ReleaseArgs{Key: h.key, Owner: h.owner, Fence: h.Fence()})
	return err
}

// giveUp ends the hold here, before its release is sent; false when it has ended
// already.
func (h *Hold) giveUp() bool {
	if !h.finish(ErrReleased) {
		return false
	}
	h.c.mu.Lock()
	h.c.untrackLocked(h)
	h.c.mu.Unlock()
	return true
}
