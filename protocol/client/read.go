package client

import (
	"errors"
	"fmt"
	"io"

	"github.com/locksidecar/locksidecar/protocol"
)

// readBuffer holds many small frames, or one large frame.
const readBuffer = 64 << 10

// readLoop is the reader goroutine.
func (c *Client) readLoop() {
	why := c.endHolds(closedBy(c.read()))
	c.mu.Lock()
	calls := c.calls
	c.calls = nil
	c.mu.Unlock()
	for id, cl := range calls {
		cl.reply = Reply{ID: id, Err: why}
		c.finish(cl, cl.abandoned) // no longer in the map, so no other goroutine sets it
	}
	if c.opts.OnEnd != nil {
		c.opts.OnEnd(why)
	}
	// The descriptor is closed only now, because the daemon keeps the keys closed to others until
	// then.
	c.conn.Close()
	close(c.done)
}

// endHolds records why as the reason for the end of the connection, unless a reason is recorded
// already, and ends every hold with that reason. It returns the recorded reason.
func (c *Client) endHolds(why error) error {
	c.mu.Lock()
	if c.err == nil {
		c.err = why
	}
	why = c.err
	holds := c.holds
	c.holds = nil
	c.mu.Unlock()
	for _, h := range holds {
		for ; h != nil; h = h.next { // the chains do not change any more
			h.finish(why)
		}
	}
	return why
}

func (c *Client) read() error {
	buf := make([]byte, readBuffer)
	have := 0
	limit := protocol.DefaultMaxFrame
	for {
		n, err := c.conn.Read(buf[have:])
		if err != nil {
			if errors.Is(err, io.EOF) && have > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		have += n
		c.heard.Store(true)
		rest, err := c.frames(buf[:have], limit)
		if err != nil {
			return err
		}
		limit = max(limit, c.frameLimit())
		have = copy(buf, rest)
		if have == len(buf) { // a part of one frame fills it
			buf = append(buf, make([]byte, min(len(buf), limit+protocol.HeaderLen-len(buf)))...)
		}
	}
}

func (c *Client) frameLimit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.maxFrame
}

// frames handles every whole frame in b, then writes the requests of the handlers. It returns the
// bytes of an incomplete frame.
func (c *Client) frames(b []byte, limit int) (rest []byte, err error) {
	c.mu.Lock()
	c.wr.reading = true
	c.mu.Unlock()
	woken := 0
	for {
		var payload []byte
		var ok bool
		payload, b, ok, err = protocol.Cut(b, limit)
		if err != nil || !ok {
			break
		}
		var woke bool
		if woke, err = c.frame(payload); err != nil {
			break
		}
		if woke {
			woken++
		}
	}
	c.mu.Lock()
	c.wr.reading = false
	c.wr.crowd = woken
	c.flushUnlock(false)
	return b, err
}

// frame handles one payload. woke reports whether it has ended a call that a caller waits for. An
// error ends the connection.
func (c *Client) frame(payload []byte) (woke bool, err error) {
	m, err := protocol.DecodeMessage(payload)
	if err != nil {
		return false, fmt.Errorf("read frame: %w", err)
	}
	if m.ID == 0 {
		if err = c.push(&m); err == nil {
			err = m.Done()
		}
		return false, err
	}
	c.mu.Lock()
	cl := c.calls[m.ID]
	delete(c.calls, m.ID)
	abandoned := cl != nil && cl.abandoned
	c.mu.Unlock()
	if cl == nil {
		return false, m.Done() // the reply to a cancel, or to the release of an unwanted grant
	}
	if err = c.decode(cl, &m); err == nil {
		err = m.Done()
	}
	if err != nil {
		err = fmt.Errorf("read reply: %w", err)
		cl.reply = Reply{ID: m.ID, Err: closedBy(err)}
		c.finish(cl, abandoned)
		return false, err
	}
	waits := cl.done == nil && !abandoned
	c.finish(cl, abandoned)
	return waits, nil
}

// finish ends a call that has its reply and is in no table any more.
func (c *Client) finish(cl *call, abandoned bool) {
	switch {
	case abandoned:
		if cl.reply.Err == nil {
			c.giveBack(cl)
		}
		c.settle(cl)
		cl.free()
	case cl.done != nil:
		cl.done(&cl.reply)
		cl.free()
	default:
		cl.ready <- struct{}{}
	}
}

// decode reads a reply into its call.
func (c *Client) decode(cl *call, m *protocol.Message) (err error) {
	r := &cl.reply
	r.ID = m.ID
	if m.Code != protocol.OK {
		return c.decodeError(cl, m)
	}
	switch cl.req.Op {
	case protocol.OpHello:
		var w protocol.Welcome
		if w, err = m.Welcome(); err == nil {
			c.welcomed(w, cl.began)
		}
	case protocol.OpAcquire, protocol.OpRenew, protocol.OpDowngrade:
		r.Grant, err = m.Grant()
		switch acquire := cl.req.Op == protocol.OpAcquire; {
		case err != nil, acquire && (cl.abandoned || c.refuseGrant(cl)):
		case cl.hold != nil:
			c.granted(cl.hold, &r.Grant)
		}
	case protocol.OpAcquireMany:
		err = c.decodeGrants(cl, m)
	case protocol.OpAcquireAny:
		err = c.decodeGrantOf(cl, m)
	case protocol.OpReleaseMany:
		err = c.decodeCodes(cl, m)
	case protocol.OpInspect:
		r.State, err = m.State()
	case protocol.OpList:
		r.Rows, r.Next, err = m.List()
	case protocol.OpStored:
		r.Stored, r.Next, err = m.Stored()
	default: // release, ping, force-unlock
		r.Number, err = m.Number()
	}
	return err
}

// decodeError reads an error reply into its call.
func (c *Client) decodeError(cl *call, m *protocol.Message) (err error) {
	e := &Error{Code: m.Code}
	e.Msg, e.Detail, err = m.Error()
	cl.reply.Err = e
	if m.Code == protocol.NotHeld && (cl.hold != nil || cl.req.Op == protocol.OpRelease) {
		c.notHeld(string(cl.req.Key), cl.req.Owner, cl.req.Fence, e)
	}
	return err
}

// decodeGrants reads the reply to an acquire-many into its call.
func (c *Client) decodeGrants(cl *call, m *protocol.Message) (err error) {
	r := &cl.reply
	if r.Grants, err = m.Grants(); err != nil {
		return err
	}
	if len(r.Grants) != len(cl.req.Keys) {
		return fmt.Errorf("%d grants for %d keys", len(r.Grants), len(cl.req.Keys))
	}
	if !cl.abandoned && !c.refuseGrant(cl) && cl.holds != nil {
		for i, h := range cl.holds {
			c.granted(h, &r.Grants[i])
		}
	}
	return nil
}

// decodeGrantOf reads the reply to an acquire-any into its call.
func (c *Client) decodeGrantOf(cl *call, m *protocol.Message) (err error) {
	r := &cl.reply
	var index uint64
	if r.Grant, index, err = m.GrantOf(); err != nil {
		return err
	}
	if index >= uint64(len(cl.req.Keys)) {
		return fmt.Errorf("key %d of %d", index, len(cl.req.Keys))
	}
	r.Index = int(index)
	if h := cl.hold; !cl.abandoned && !c.refuseGrant(cl) && h != nil {
		h.key = string(cl.req.Keys[index])
		c.granted(h, &r.Grant)
	}
	return nil
}

// decodeCodes reads the reply to a release-many into its call.
func (c *Client) decodeCodes(cl *call, m *protocol.Message) (err error) {
	r := &cl.reply
	if r.Codes, err = m.Codes(); err != nil {
		return err
	}
	if len(r.Codes) != len(cl.req.Keys) {
		return fmt.Errorf("%d codes for %d keys", len(r.Codes), len(cl.req.Keys))
	}
	for i, code := range r.Codes {
		if code == protocol.NotHeld {
			c.notHeld(string(cl.req.Keys[i]), cl.req.Owner, cl.req.Fences[i], ErrNotHeld)
		}
	}
	return nil
}

// answerKeepalive answers a keepalive with a ping, which counts as a heartbeat. It does so
// whatever the welcome said, because a reload of the daemon can require a heartbeat later. The
// reply is ignored.
func (c *Client) answerKeepalive() {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.appendLocked(&protocol.Request{Op: protocol.OpPing})
	c.flushUnlock(false)
}

// push handles a message that answers no request.
func (c *Client) push(m *protocol.Message) error {
	switch m.Event {
	case protocol.EventLost:
		key, owner, fence, reason, err := m.Lost()
		if err != nil {
			return fmt.Errorf("read lost: %w", err)
		}
		c.lost(Lost{key, owner, fence, reason})
	case protocol.EventReleaseFailed:
		key, owner, fence, code, _, err := m.ReleaseFailed()
		if err != nil {
			return fmt.Errorf("read release-failed: %w", err)
		}
		c.releaseFailed(key, owner, fence, code)
	case protocol.EventKeepalive:
		until, left, err := m.Keepalive()
		if err != nil {
			return fmt.Errorf("read keepalive: %w", err)
		}
		c.keepalives.add(c.clock.local(until))
		c.answerKeepalive()
		if c.opts.OnKeepalive != nil {
			c.opts.OnKeepalive(Keepalive{until, left})
		}
	case protocol.EventGoingAway:
		drain, msg, err := m.GoingAway()
		if err != nil {
			return fmt.Errorf("read going-away: %w", err)
		}
		if c.opts.OnGoingAway != nil {
			c.opts.OnGoingAway(drain, msg)
		}
	case protocol.EventFatal:
		code, msg, err := m.Fatal()
		if err != nil {
			return fmt.Errorf("read fatal: %w", err)
		}
		return &Error{Code: code, Msg: msg}
	}
	return nil // of a later version
}
