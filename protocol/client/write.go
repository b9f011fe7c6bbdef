package client

import (
	"fmt"
	"runtime"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

const (
	// maxPending bounds the bytes that wait to be written.
	maxPending = 64 << 20
	// callerRounds is how often a caller also writes the requests of others. After that it leaves them
	// to the writer goroutine, and waits for its own reply.
	callerRounds = 4
	// keepBuffer is the capacity of the largest buffer that is kept after a burst.
	keepBuffer = 1 << 20
	// lastWords is how long the reader waits for the daemon's last frames after a write has failed.
	lastWords = time.Second
)

// outbox is the writing half of a connection. It is guarded by Client.mu, except for buffers that
// the goroutine which has set writing has taken out of it.
type outbox struct {
	out, spare []byte // queued requests; the other buffer
	rest       []byte // left to the writer goroutine, older than out
	restBuf    []byte // the whole buffer that rest is a part of
	writing    bool   // a goroutine has the right to write
	reading    bool   // the reader is handling frames, and will flush after them
	crowd      int    // number of callers that its last frames woke
	failed     bool   // a write failed: further requests are discarded
	kick       chan struct{}
}

// send gives cl an id and sends it.
func (c *Client) send(cl *call, waits bool) (uint64, error) {
	c.mu.Lock()
	id, err := c.putLocked(&cl.req)
	if err != nil {
		c.mu.Unlock()
		return 0, err
	}
	c.calls[id] = cl
	c.watchLocked()
	if !waits && c.wr.reading {
		c.mu.Unlock() // the reader flushes after its frames
		return id, nil
	}
	c.flushUnlock(waits)
	return id, nil
}

// putLocked appends a caller's request, unless it cannot be sent.
func (c *Client) putLocked(q *protocol.Request) (id uint64, err error) {
	if c.err != nil {
		return 0, c.err
	}
	w := &c.wr
	before := len(w.out)
	if before+len(w.rest) > maxPending {
		return 0, &Error{Code: protocol.Limit, Msg: "too much is waiting to be written"}
	}
	id = c.appendLocked(q)
	if n := len(w.out) - before - protocol.HeaderLen; n > c.maxFrame {
		w.out = w.out[:before]
		return 0, &Error{Code: protocol.Invalid,
			Msg: fmt.Sprintf("a request of %d bytes, the limit is %d", n, c.maxFrame)}
	}
	return id, nil
}

func (c *Client) appendLocked(q *protocol.Request) uint64 {
	c.lastID++
	q.ID = c.lastID
	c.wr.out = protocol.AppendRequest(c.wr.out, q)
	return q.ID
}

// flushUnlock writes the queued requests, unless another goroutine does so already. It is called
// with mu held, unlocks it, and does not block. With gather it first lets the callers run that the
// same read has woken, so that their requests are written together.
func (c *Client) flushUnlock(gather bool) {
	w := &c.wr
	if w.writing || len(w.out) == 0 {
		c.mu.Unlock()
		return
	}
	w.writing = true
	if gather && w.crowd > 1 {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	for range callerRounds {
		b := w.out
		w.out, w.spare = w.spare[:0], nil
		c.mu.Unlock()
		n, err := c.conn.TryWrite(b)
		c.mu.Lock()
		if n < len(b) && err == nil {
			w.rest, w.restBuf = b[n:], b
			break
		}
		if err != nil {
			c.writeFailedLocked()
		}
		w.recycle(b)
		if len(w.out) == 0 {
			w.writing = false
			c.mu.Unlock()
			return
		}
	}
	w.kick <- struct{}{} // this does not block, because only the goroutine that has set writing sends
	c.mu.Unlock()
}

func (w *outbox) recycle(b []byte) {
	if cap(b) <= keepBuffer {
		w.spare = b[:0]
	}
	if w.failed {
		w.out = w.out[:0]
	}
}

// writeFailedLocked leaves the end of the connection to the reader, because the daemon may have
// sent the reason.
func (c *Client) writeFailedLocked() {
	c.wr.failed = true
	c.conn.SetReadDeadline(time.Now().Add(lastWords))
}

// writeLoop is the writer goroutine, which may block.
func (c *Client) writeLoop() {
	w := &c.wr
	for {
		select {
		case <-c.done:
			return
		case <-w.kick:
		}
		c.mu.Lock()
		for w.writing {
			b := w.rest
			if b == nil {
				w.restBuf, w.out = w.out, w.spare[:0]
				w.spare, b = nil, w.restBuf
			}
			c.mu.Unlock()
			_, err := c.conn.Write(b)
			c.mu.Lock()
			if err != nil {
				c.writeFailedLocked()
			}
			b, w.rest, w.restBuf = w.restBuf, nil, nil
			w.recycle(b)
			w.writing = len(w.out) > 0
		}
		c.mu.Unlock()
	}
}
