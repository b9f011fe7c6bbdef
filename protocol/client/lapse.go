package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Holds that are lost and not released, acquires that were given up, and a daemon that hangs.

// mayAcquire waits until no acquire of these keys that their owner gave up can still be granted, since a new one
// would re-enter that hold. It refuses keys that the owner has lost and not released: the daemon would grant a second
// critical section inside of the first.
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

// lostLocked is the loss of a hold that its owner has not released yet; nil when there is none.
func (c *Client) lostLocked(id holdID) error {
	if lost := c.unreleased[id]; len(lost) > 0 {
		return lost[0].Err()
	}
	for h := c.holds[id]; h != nil; h = h.next {
		if h.permit || h.Valid() {
			continue
		}
		if err := h.lapsed(); !errors.Is(err, ErrReleased) { // one that is just being released is not lost
			return err
		}
	}
	return nil
}

// refused gives back what was granted to an owner that has lost a hold of the key while it asked, and has not
// released it: the grant would be a second critical section inside of the first.
func (c *Client) refused(cl *call) bool {
	if cl.done != nil || cl.abandoned || cl.req.Mode == protocol.Permit {
		return false
	}
	keys := cl.req.Keys
	if cl.req.Op == protocol.OpAcquire {
		keys = [][]byte{cl.req.Key}
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

// lapsed is why a hold that is not valid is not held: a fixed one may have come to its own end.
func (h *Hold) lapsed() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over != nil:
		return h.over
	case h.end != 0 && now() >= h.end:
		return &LostError{protocol.LostFixed}
	}
	return ErrExpired
}

// keepLostLocked notes that h is lost, and not released yet. A permit is not re-entered.
func (c *Client) keepLostLocked(h *Hold) {
	if !h.permit {
		id := holdID{h.key, h.owner}
		c.unreleased[id] = append(c.unreleased[id], h)
	}
}

// forgetLost is the release of a hold that has ended; true when it was lost and has not been released before.
func (c *Client) forgetLost(h *Hold) bool {
	h.mu.Lock()
	_, lost := h.over.(*LostError)
	again := h.letGo
	h.letGo = true
	h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	id := holdID{h.key, h.owner}
	all := c.unreleased[id]
	for i, x := range all {
		if x == h {
			if len(all) == 1 {
				delete(c.unreleased, id)
			} else {
				c.unreleased[id] = append(all[:i:i], all[i+1:]...)
			}
			break
		}
	}
	return lost && !again
}

// abandonLocked notes that an acquire was given up, by is 1, or answered, by is -1.
func (c *Client) abandonLocked(cl *call, by int) {
	keys := cl.req.Keys
	switch {
	case cl.req.Op == protocol.OpAcquire && cl.req.Mode != protocol.Permit:
		keys = [][]byte{cl.req.Key}
	case cl.req.Op != protocol.OpAcquireMany:
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

// A daemon that hangs keeps its connections open and answers nothing.
const (
	watchEvery = time.Second
	pingAfter  = 5  // so many times nothing was read while a reply is awaited: then a ping is sent
	hangAfter  = 15 // and so many times: then the connection ends
)

// watchLocked has the connection watched while a reply is awaited.
func (c *Client) watchLocked() {
	if !c.watching {
		c.watching, c.silent = true, 0
		c.heard.Store(false)
		c.watch.Reset(watchEvery)
	}
}

// look runs every watchEvery while a reply is awaited. It counts its own runs, and not the clock: after a suspend there
// may be replies that nobody has had the time to read.
func (c *Client) look() {
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
		c.endHolds(closedBy(&Error{Code: protocol.Unavailable, Msg: fmt.Sprintf("the daemon has not answered for %v", hangAfter*watchEvery)}))
		c.conn.Close() // ends the reader, which ends the calls
		return
	case pingAfter:
		c.appendLocked(&protocol.Request{Op: protocol.OpPing})
	}
	c.watch.Reset(watchEvery)
	c.flushUnlock(false)
}
