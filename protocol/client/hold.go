package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// holdID, together with the fence, identifies a hold in a lost push.
type holdID struct {
	key   string
	owner uint64
}

// Hold is one grant whose validity the client tracks. Only the daemon's statements count. Silence
// is not validity: without further statements the hold runs out. Once a caller has checked a hold
// that has run out, it is lost for good, even if the daemon states a later validity afterwards.
type Hold struct {
	c     *Client
	key   string
	owner uint64
	next  *Hold // guarded by Client.mu: another Hold with the same key and owner

	permit bool // of a semaphore
	quiet  bool // its release is quiet

	mu     sync.Mutex
	fixed  bool           // guarded by mu: acquired without renewal, so it has an end of its own
	grant  protocol.Grant // guarded by mu: the last one received
	stated                // guarded by mu
	over   error          // guarded by mu: why nothing is held any more
	// ranOut means that the hold is over because its validity ran out. The daemon may still have the
	// hold. Guarded by mu.
	ranOut   bool
	released bool          // guarded by mu: its owner has released it after its end
	gone     chan struct{} // closed when over is set
}

// stated has the daemon's statements about one hold. All Holds of the same key, owner and fence
// share them.
type stated struct {
	deadline int64  // the furthest validity that a grant stated, on our clock
	end      int64  // when the hold ends, even if a keepalive states more; 0 for never
	seq      uint64 // the first keepalive that applies to the hold; 0 before its grant
}

// add adds another statement. Earlier statements stay true, no matter in which order replies
// arrive.
func (s *stated) add(more stated) {
	s.deadline, s.end = max(s.deadline, more.deadline), max(s.end, more.end)
	s.seq = min(s.seq-1, more.seq-1) + 1 // 0 counts as infinite
}

// errLate is the error of an acquire whose grant was past its deadline when it was read.
var errLate = &Error{Code: protocol.Unavailable, Msg: "the grant came after its validity was over"}

// Lock is like Acquire, and keeps track of the hold. The caller must end it with Release, even if
// it was lost. Until then an acquire of the key by the same owner fails with the error of the
// loss.
func (c *Client) Lock(ctx context.Context, a AcquireArgs) (*Hold, error) {
	h := c.newHold(a.Key, &a)
	if h.permit = a.Permits > 0; !h.permit {
		if err := c.mayAcquire(ctx, a.Owner, a.Key); err != nil {
			return nil, err
		}
	}
	if _, err := c.acquire(ctx, &a, h); err != nil {
		return nil, err
	}
	return h.inTime(ctx)
}

// LockAny is like AcquireAny, and keeps track of the hold, as Lock does. Hold.Key returns the key
// that was acquired.
func (c *Client) LockAny(ctx context.Context, keys []string, a AcquireArgs) (*Hold, error) {
	if err := c.mayAcquire(ctx, a.Owner, keys...); err != nil {
		return nil, err
	}
	h := c.newHold("", &a)
	if _, err := c.acquireAny(ctx, keys, &a, h); err != nil {
		return nil, err
	}
	return h.inTime(ctx)
}

// inTime returns h. If its grant was past its deadline when it was read, inTime releases it and
// returns an error.
func (h *Hold) inTime(ctx context.Context) (*Hold, error) {
	if !h.Valid() && h.tooLate() {
		_ = h.ReleaseNow(ctx)
		return nil, errLate
	}
	return h, nil
}

func (c *Client) newHold(key string, a *AcquireArgs) *Hold {
	return &Hold{c: c, key: key, owner: a.Owner, fixed: a.Fixed, quiet: a.Quiet,
		gone: make(chan struct{})}
}

// granted records a grant or a renewal. It runs on the reader goroutine, so that keepalives and
// losses that come earlier or later are told apart.
func (c *Client) granted(h *Hold, g *protocol.Grant) {
	heard := stated{deadline: c.clock.local(g.Deadline), seq: c.keepalives.last() + 1}
	if g.End != 0 {
		heard.end = c.clock.local(g.End)
	}
	id := holdID{h.key, h.owner}
	c.mu.Lock()
	again, fixed := false, false // whether the same hold was acquired before, and its kind
	for x := c.holds[id]; x != nil; x = x.next {
		if x != h && x.Fence() == g.Fence {
			x.mu.Lock()
			x.add(heard)
			heard, again, fixed = x.stated, true, x.fixed
			x.mu.Unlock()
		}
	}
	h.mu.Lock()
	h.grant = *g
	fresh := h.seq == 0
	if fresh && again {
		h.fixed = fixed // a re-entry does not change whether a hold is fixed
	}
	h.add(heard)
	h.mu.Unlock()
	err := c.err
	if fresh && err == nil { // from now on a push can end it
		h.next, c.holds[id] = c.holds[id], h
	}
	c.mu.Unlock()
	if fresh && err != nil { // Close was called in between
		h.finish(err)
	}
}

// notHeld ends all holds of the owner with this key and fence, because the daemon no longer has
// them. It reports whether there are any. It runs on the reader goroutine.
func (c *Client) notHeld(key string, owner, fence uint64, why error) bool {
	var hit []*Hold
	c.mu.Lock()
	defer c.mu.Unlock()
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
	return len(hit) > 0
}

// lost ends the holds that a lost push names. It runs on the reader goroutine.
func (c *Client) lost(l Lost) {
	known := c.notHeld(l.Key, l.Owner, l.Fence, &LostError{l.Reason})
	if (known || !c.quiet.Load()) && c.opts.OnLost != nil {
		c.opts.OnLost(l)
	}
}

// releaseFailed reports the failure of a quiet release. The client has forgotten the hold. A lost
// push that has crossed the release was ignored.
func (c *Client) releaseFailed(key string, owner, fence uint64, code protocol.Code) {
	why := protocol.LostGone
	if code == protocol.Unknown {
		why = protocol.LostUnconfirmed
	}
	if c.opts.OnLost != nil {
		c.opts.OnLost(Lost{key, owner, fence, why})
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
	return h.finishLocked(why)
}

func (h *Hold) finishLocked(why error) bool {
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

// Grant returns its last grant, from an acquire or a renewal.
func (h *Hold) Grant() protocol.Grant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grant
}

// Remaining returns how long the hold is valid from now on; 0 if it is not.
// It reads the clock, and does not block. A hold that has run out is lost from then on.
func (h *Hold) Remaining() time.Duration {
	left, ranOut := h.remaining()
	if ranOut {
		h.c.mu.Lock()
		h.c.ranOutLocked(h)
		h.c.mu.Unlock()
	}
	return left
}

// Valid reports whether the hold is valid now. A hold that has run out is lost from then
// on. Only what the client has read counts: after a pause of the whole process, a keepalive may
// still wait in the socket's buffer.
func (h *Hold) Valid() bool { return h.Remaining() > 0 }

// Check returns nil if the hold is valid now, and otherwise the reason, as Err does. Like Valid, it
// reads the clock.
func (h *Hold) Check() error {
	if h.Valid() {
		return nil
	}
	return h.Err()
}

// Gone is closed when the hold has ended: by a release, by a loss, or by the end of the connection.
// It is also closed when a caller notices that the validity has run out. Watch waits for that, too.
func (h *Hold) Gone() <-chan struct{} { return h.gone }

// Err returns why nothing is held any more: a *LostError, ErrExpired, ErrNotHeld from a renewal,
// an ErrClosed or ErrReleased. It is nil before Gone is closed. It does not read the clock.
func (h *Hold) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over
}

// watchStep bounds how long Watch sleeps. While the machine is suspended, the hold's clock runs,
// but Go's timers do not.
const watchStep = 500 * time.Millisecond

// Watch blocks until the hold is no longer valid, and returns the reason: the error of Err, or
// ErrExpired. If the hold has reached its end, Watch returns that loss even before the daemon
// reports it. If ctx ends first, Watch returns its error.
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
			return h.Err()
		}
		t.Reset(min(left, watchStep))
	}
}

// Renew restarts the hold's TTL, with a new length unless ttl is 0. It blocks
// until the daemon has answered or ctx ends.
func (h *Hold) Renew(ctx context.Context, ttl time.Duration) error {
	return h.change(func() error {
		_, err := h.c.renew(ctx, h.key, h.owner, h.Fence(), ttl, h)
		return err
	})
}

// Downgrade makes an exclusive hold a shared one. It blocks until the daemon has
// answered or ctx ends.
func (h *Hold) Downgrade(ctx context.Context) error {
	return h.change(func() error {
		_, err := h.c.downgrade(ctx, h.key, h.owner, h.Fence(), h)
		return err
	})
}

// change carries out do if the hold is valid. If the hold is over afterwards, change returns the
// reason.
func (h *Hold) change(do func() error) error {
	if err := h.Check(); err != nil {
		return err
	}
	if err := do(); err != nil && !errors.Is(err, ErrNotHeld) {
		return err
	}
	return h.Err() // a not_held reply has ended it
}

// Release releases the hold, which is invalid as soon as Release is called. It blocks until the
// daemon has answered or ctx ends. The release continues even if ctx ends first. If the hold has
// ended before, Release returns the reason at once. If the hold was ended by force, or its validity
// has run out, Release also tells the daemon, which may keep the key closed to others until then.
//
// If the hold was acquired with AcquireArgs.Quiet, Release is ReleaseQuiet.
func (h *Hold) Release(ctx context.Context) error {
	if h.quiet {
		return h.ReleaseQuiet()
	}
	return h.release(ctx, false)
}

// ReleaseNow is like Release, but opens the key even if the Keep of the hold is not over. It is
// never quiet.
func (h *Hold) ReleaseNow(ctx context.Context) error { return h.release(ctx, true) }

func (h *Hold) release(ctx context.Context, now bool) error {
	a := h.releaseArgs()
	a.Now = now
	if held, _ := h.giveUp(); !held {
		return h.releaseLost(a)
	}
	_, err := h.c.Release(ctx, a)
	return err
}

// ReleaseQuiet is like Release, but does not wait for the daemon: it does not block. OnLost reports
// a later failure. The store may not have confirmed the release yet, so a try from another host may
// still find the key held.
func (h *Hold) ReleaseQuiet() error {
	h.c.quiet.Store(true)
	held, last := h.giveUp()
	switch {
	case !held:
		return h.releaseLost(h.releaseArgs())
	case last:
		return h.c.ReleaseQuiet(h.releaseArgs())
	}
	// The push lost reports a loss of the remaining holds.
	return h.c.releaseUnheard(h.releaseArgs())
}

func (h *Hold) releaseArgs() ReleaseArgs {
	return ReleaseArgs{Key: h.key, Owner: h.owner, Fence: h.Fence()}
}

// releaseLost releases a hold that has ended, as a says, and returns the reason of its end.
func (h *Hold) releaseLost(a ReleaseArgs) error {
	if h.c.forgetLost(h) {
		_ = h.c.releaseUnheard(a)
	}
	return h.Err()
}

// giveUp ends the hold in the client, before its release is sent. held is false if the hold has
// ended already, or its validity has run out. last is true if the client has no other Hold of the
// same key, owner and fence.
func (h *Hold) giveUp() (held, last bool) {
	if !h.Valid() || !h.finish(ErrReleased) {
		return false, false
	}
	fence := h.Fence()
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.c.untrackLocked(h)
	for x := h.c.holds[holdID{h.key, h.owner}]; x != nil; x = x.next {
		if x.Fence() == fence {
			return true, false
		}
	}
	return true, true
}
