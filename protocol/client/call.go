package client

import (
	"context"
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
)

// Reply is the result of a request. Which fields are set depends on the request's op. If Err is
// set, no other field is.
type Reply struct {
	ID     uint64
	Err    error            // nil, an *Error, or an ErrClosed
	Number uint64           // release: the count left; ping: the clock; force-unlock: holds ended
	Grant  protocol.Grant   // acquire, acquire-any, renew, downgrade
	Index  int              // acquire-any: of the key that was acquired
	Grants []protocol.Grant // acquire-many
	Codes  []protocol.Code  // release-many
	State  protocol.State   // inspect
	Rows   []protocol.Row   // list
	Stored []protocol.StoredRow
	Next   string // list, stored
}

// call is one request in flight. Only the reader goroutine writes reply. The caller reads it after
// ready is signaled.
type call struct {
	req   protocol.Request
	key   []byte // memory of req.Key, kept for the next use
	reply Reply
	ready chan struct{}
	done  func(*Reply) // the argument of Go; nil if the caller waits
	hold  *Hold        // set if the grant belongs to it; updated in the order of the wire
	holds Holds        // the same for acquire-many
	began int64        // hello: our clock before it was sent
	// abandoned means that the caller has stopped waiting. A late grant is released. Guarded by
	// Client.mu.
	abandoned bool
}

var callPool = sync.Pool{New: func() any { return &call{ready: make(chan struct{}, 1)} }}

func newCall() *call { return callPool.Get().(*call) }

// free returns the call to the pool. Its reply must not be used any more.
func (cl *call) free() {
	*cl = call{key: cl.key[:0], ready: cl.ready}
	callPool.Put(cl)
}

// keyedCall returns a call of q for a key. h gets the grant, unless it is nil.
func keyedCall(q protocol.Request, key string, h *Hold) *call {
	cl := newCall()
	cl.key = append(cl.key[:0], key...)
	cl.req, cl.hold = q, h
	cl.req.Key = cl.key
	return cl
}

// do sends cl and waits for its end. After an error, do has freed cl or leaves that to the reader.
// Otherwise the caller has to free it.
func (c *Client) do(ctx context.Context, cl *call) error {
	if err := ctx.Err(); err != nil {
		cl.free()
		return err
	}
	id, err := c.send(cl, true)
	if err != nil {
		cl.free()
		return err
	}
	if ctx.Done() == nil {
		<-cl.ready
	} else {
		select {
		case <-cl.ready:
		case <-ctx.Done():
			if c.abandon(id) {
				return ctx.Err()
			}
			<-cl.ready // it ended meanwhile: return its result
		}
	}
	if err := cl.reply.Err; err != nil {
		cl.free()
		return err
	}
	return nil
}

// abandon leaves the call to the reader, and withdraws an acquire. It returns false if the call
// has ended already.
func (c *Client) abandon(id uint64) bool {
	c.mu.Lock()
	cl := c.calls[id]
	if cl == nil {
		c.mu.Unlock()
		return false
	}
	cl.abandoned = true
	c.abandonLocked(cl, 1)
	var cancel protocol.Request
	switch cl.req.Op {
	case protocol.OpAcquire:
		cancel.Key = cl.req.Key
	case protocol.OpAcquireMany, protocol.OpAcquireAny:
		cancel.Key = cl.req.Keys[0]
	default:
		c.mu.Unlock()
		return true
	}
	cancel.Op, cancel.Target = protocol.OpCancel, id
	c.appendLocked(&cancel)
	c.flushUnlock(false)
	return true
}

// settle records that an abandoned acquire has been answered. If it was granted, its release has
// been sent.
func (c *Client) settle(cl *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandonLocked(cl, -1)
}

// giveBack releases the grants of an abandoned call that was granted before its cancel arrived. It
// does not wait for the replies.
func (c *Client) giveBack(cl *call) {
	keys, grants := cl.req.Keys, cl.reply.Grants
	switch cl.req.Op {
	case protocol.OpAcquire:
		keys, grants = [][]byte{cl.req.Key}, []protocol.Grant{cl.reply.Grant}
	case protocol.OpAcquireAny:
		keys, grants = keys[cl.reply.Index:][:1], []protocol.Grant{cl.reply.Grant}
	case protocol.OpAcquireMany:
		if len(grants) != len(keys) {
			return // not an answer to this request
		}
	default:
		return
	}
	c.mu.Lock()
	for i := range keys {
		// one request per key, because with its fences one request for all might not fit into a frame
		if c.err == nil {
			c.appendLocked(&protocol.Request{Op: protocol.OpRelease, Owner: cl.req.Owner, Key: keys[i],
				Fence: grants[i].Fence, Flags: protocol.FlagNow})
		}
	}
	c.flushUnlock(false)
}

// Go sends q and returns at once. done is called with the result on the reader goroutine, so it
// must not block. The reply is valid until done returns, and q may be reused after Go has
// returned. The caller has to bound its requests in flight: above 64 MiB of unwritten requests,
// Go returns an ErrLimit. Cancel accepts the returned id.
func (c *Client) Go(q *protocol.Request, done func(*Reply)) (id uint64, err error) {
	cl := newCall()
	cl.req, cl.done = *q, done
	if id, err = c.send(cl, false); err != nil {
		cl.free()
	}
	return id, err
}

// Cancel withdraws the acquire that was sent for key under id. It does not wait:
// the acquire itself ends with ErrCanceled, or with the grant if that was first.
func (c *Client) Cancel(id uint64, key string) error {
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		return err
	}
	c.appendLocked(&protocol.Request{Op: protocol.OpCancel, Target: id, Key: []byte(key)})
	c.flushUnlock(false)
	return nil
}
