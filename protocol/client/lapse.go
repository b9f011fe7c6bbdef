package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file has the rules for lost holds that are not released, for abandoned acquires, and for a
// daemon that hangs.

// mayAcquire blocks while an abandoned acquire of these keys by this owner can still be granted,
// because a new acquire would re-enter that hold. If the owner has lost a key and not released it,
// mayAcquire returns the loss. Otherwise the daemon would grant a second critical section inside
// the first.
func (c *Client) mayAcquire(ctx context.Context, owner uint64, keys ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		id := holdID{k, owner}
		for c.abandoned[id] > 0 {
			settled := c.settled
			c.mu.Unlock()
			select {
			case <-settled:
				c.mu.Lock()
			case <-ctx.Done():
				c.mu.Lock()
				return ctx.Err()
			}
		}
		if err := c.lostLocked(id); err != nil {
			return err
		}
	}
	return nil
}

// lostLocked returns the loss of a hold that its owner has not released yet, or nil.
func (c *Client) lostLocked(id holdID) error {
	if lost := c.unreleased[id]; len(lost) > 0 {
		return lost[0].Err()
	}
	for h := c.holds[id]; h != nil; h = h.next {
		if h.permit {
			continue
		}
		left, ranOut := h.remaining()
		if ranOut {
			c.ranOutLocked(h)
		}
		// A release in progress is not a loss.
		if err := h.Err(); left == 0 && !errors.Is(err, ErrReleased) {
			return err
		}
	}
	return nil
}

// refuseGrant reports whether the owner has lost a hold of a granted key while it waited, and has
// not released it. It then gives the grant back, since it would be a second critical section
// inside the first, and fails the call.
func (c *Client) refuseGrant(cl *call) bool {
	if cl.done != nil || cl.abandoned || cl.req.Mode == protocol.Permit {
		return false
	}
	keys := cl.req.Keys
	switch cl.req.Op {
	case protocol.OpAcquire:
		keys = [][]byte{cl.req.Key}
	case protocol.OpAcquireAny:
		keys = keys[cl.reply.Index:][:1]
	}
	var err error
	c.mu.Lock()
	for i := 0; i < len(keys) && err == nil; i++ {
		err = c.lostLocked(holdID{string(keys[i]), cl.req.Owner})
	}
	c.mu.Unlock()
	if err != nil {
		c.giveBack(cl)
		cl.reply = Reply{ID: cl.reply.ID, Err: err}
	}
	return err != nil
}

// remaining returns how long the hold is valid from now on. ranOut reports that this call has found
// that the validity has run out; the hold is lost from then on.
func (h *Hold) remaining() (left time.Duration, ranOut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over != nil {
		return 0, false
	}
	until := max(h.deadline, h.c.keepalives.furthest(h.seq))
	if h.end != 0 {
		until = min(until, h.end)
	}
	at := now()
	if at < until {
		return time.Duration(until - at), false
	}
	why := ErrExpired
	if h.end != 0 && at >= h.end {
		why = &LostError{protocol.LostTooLong}
		if h.fixed {
			why = &LostError{protocol.LostFixed}
		}
	}
	h.finishLocked(why)
	h.ranOut = true
	return 0, true
}

// ranOutLocked ends all Holds with the key, owner and fence of h, because h has run out and they
// are the same hold. They stay in the table as lost holds until they are released.
func (c *Client) ranOutLocked(h *Hold) {
	fence, why := h.Fence(), h.Err()
	for x := c.holds[holdID{h.key, h.owner}]; x != nil; x = x.next {
		if x.Fence() != fence {
			continue
		}
		x.mu.Lock()
		if x.finishLocked(why) {
			x.ranOut = true
		}
		x.mu.Unlock()
	}
}

// tooLate reports whether the hold has run out. It does not read the clock.
func (h *Hold) tooLate() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ranOut
}

// keepLostLocked remembers that h is lost and not released yet. Permits need no record: they are
// not re-entered.
func (c *Client) keepLostLocked(h *Hold) {
	if !h.permit {
		id := holdID{h.key, h.owner}
		c.unreleased[id] = append(c.unreleased[id], h)
	}
}

// forgetLost forgets a hold that has ended, because its owner has released it. It reports whether
// this is its first release and the daemon may still keep the key closed to others.
func (c *Client) forgetLost(h *Hold) (tell bool) {
	h.mu.Lock()
	tell = !h.released && (h.ranOut || errors.Is(h.over, errForced))
	h.released = true
	h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untrackLocked(h)
	id := holdID{h.key, h.owner}
	left := slices.DeleteFunc(c.unreleased[id], func(x *Hold) bool { return x == h })
	if c.unreleased[id] = left; len(left) == 0 {
		delete(c.unreleased, id)
	}
	return tell
}

// abandonLocked counts an acquire that was given up (by is 1), or one of these that was answered
// (by is -1).
func (c *Client) abandonLocked(cl *call, by int) {
	keys := cl.req.Keys
	switch {
	case cl.req.Op == protocol.OpAcquire && cl.req.Mode != protocol.Permit:
		keys = [][]byte{cl.req.Key}
	case cl.req.Op != protocol.OpAcquireMany && cl.req.Op != protocol.OpAcquireAny:
		return
	}
	for _, k := range keys {
		id := holdID{string(k), cl.req.Owner}
		if c.abandoned[id] += by; c.abandoned[id] == 0 {
			delete(c.abandoned, id)
		}
	}
	if by < 0 {
		close(c.settled)
		c.settled = make(chan struct{})
	}
}

// A daemon that hangs keeps its connections open and answers nothing. So the client checks the
// connection while it waits for a reply.
const (
	watchEvery = time.Second
	pingAfter  = 5  // checks in a row with nothing read, after which a ping is sent
	hangAfter  = 15 // checks in a row with nothing read, after which the connection ends
)

// watchLocked starts the watchdog, which runs while a reply is awaited.
func (c *Client) watchLocked() {
	if !c.watching {
		c.watching, c.silent = true, 0
		c.heard.Store(false)
		c.watchdog.Reset(watchEvery)
	}
}

// checkDaemon runs every watchEvery while a reply is awaited. It counts its own runs instead of
// the time: after a suspend, replies may have come that the reader had no time to read.
func (c *Client) checkDaemon() {
	c.mu.Lock()
	if c.err != nil || len(c.calls) == 0 {
		c.watching = false
		c.mu.Unlock()
		return
	}
	c.silent++
	if c.heard.Swap(false) {
		c.silent = 0
	}
	switch c.silent {
	case hangAfter:
		c.mu.Unlock()
		msg := fmt.Sprintf("the daemon has not answered for %v", hangAfter*watchEvery)
		c.endHolds(closedBy(&Error{Code: protocol.Unavailable, Msg: msg}))
		c.conn.Close() // ends the reader, which ends the calls
		return
	case pingAfter:
		c.appendLocked(&protocol.Request{Op: protocol.OpPing})
	}
	c.watchdog.Reset(watchEvery)
	c.flushUnlock(false)
}
