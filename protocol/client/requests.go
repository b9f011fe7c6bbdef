package client

import (
	"context"
	"iter"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Forever is a wait without bound.
const Forever time.Duration = -1

// AcquireArgs says what to acquire.
type AcquireArgs struct {
	Key   string
	Owner uint64        // who in this process: a thread, a task. Re-entrancy counts by it
	Mode  protocol.Mode // exclusive unless set
	Wait  time.Duration // 0 tries, negative waits without bound; rounded up to milliseconds
	TTL   time.Duration // of the lease; 0 is the namespace's; rounded up to milliseconds
	// Permits, if not 0, makes it one permit of the semaphore Key, which has so many. Mode
	// is not looked at then, and there is no re-entry.
	Permits uint32
	Fixed   bool // nobody renews it but the caller, and it ends with lost
	// Traceparent says where in a trace the caller is, as W3C Trace Context has it. What is none is not sent.
	Traceparent string
}

func (a *AcquireArgs) request(op protocol.Op) protocol.Request {
	q := protocol.Request{Op: op, Owner: a.Owner, Mode: a.Mode, Wait: waitMillis(a.Wait), TTL: millis(a.TTL)}
	if a.Fixed {
		q.Flags = protocol.FlagFixed
	}
	if a.Permits > 0 {
		q.Mode, q.Permits = protocol.Permit, uint64(a.Permits)
	}
	if _, ok := protocol.ParseTraceparent(a.Traceparent); ok {
		q.Trace = []byte(a.Traceparent)
	}
	return q
}

// Acquire blocks until the key is granted, the wait is over, or ctx ends. When
// ctx ends first the acquire is withdrawn, and a grant that crosses the
// withdrawal is given back: with an error nothing is held.
func (c *Client) Acquire(ctx context.Context, a AcquireArgs) (protocol.Grant, error) {
	return c.acquire(ctx, &a, nil)
}

func (c *Client) acquire(ctx context.Context, a *AcquireArgs, h *Hold) (protocol.Grant, error) {
	cl := newCall()
	cl.req = a.request(protocol.OpAcquire)
	cl.setKey(a.Key)
	cl.hold = h
	return c.grant(ctx, cl)
}

func (c *Client) grant(ctx context.Context, cl *call) (protocol.Grant, error) {
	if err := c.do(ctx, cl); err != nil {
		return protocol.Grant{}, err
	}
	g := cl.reply.Grant
	cl.free()
	return g, nil
}

func (c *Client) number(ctx context.Context, cl *call) (uint64, error) {
	if err := c.do(ctx, cl); err != nil {
		return 0, err
	}
	n := cl.reply.Number
	cl.free()
	return n, nil
}

// ReleaseArgs names a hold to give up.
type ReleaseArgs struct {
	Key          string
	Owner, Fence uint64
	Async        bool // do not wait for the store's confirmation
	All          bool // the whole hold, whatever its count
}

func (a *ReleaseArgs) flags() (f uint64) {
	if a.Async {
		f |= protocol.FlagAsync
	}
	if a.All {
		f |= protocol.FlagAll
	}
	return f
}

// Release gives up one count of a hold, or all of it, and returns the count that
// is left. It blocks until the daemon has answered. When ctx ends first the
// release goes on all the same; only its end is not waited for.
func (c *Client) Release(ctx context.Context, a ReleaseArgs) (left uint64, err error) {
	cl := newCall()
	cl.req = protocol.Request{Op: protocol.OpRelease, Owner: a.Owner, Fence: a.Fence, Flags: a.flags()}
	cl.setKey(a.Key)
	return c.number(ctx, cl)
}

// ReleaseQuiet sends a release and does not wait: nobody hears how it ended, and
// nor whether the store has confirmed. Whoever acquires next anyway saves a round trip
// by it. It does not block; an error means that nothing was sent.
func (c *Client) ReleaseQuiet(a ReleaseArgs) error {
	c.mu.Lock()
	_, err := c.putLocked(&protocol.Request{Op: protocol.OpRelease, Key: []byte(a.Key), Owner: a.Owner, Fence: a.Fence,
		Flags: a.flags() | protocol.FlagQuiet})
	if err != nil {
		c.mu.Unlock()
		return err
	}
	c.flushUnlock(false)
	return nil
}

// Renew restarts a hold's TTL, with a new length unless ttl is 0. What was stated
// before stays true: it never shortens that. It blocks until the daemon has
// answered or ctx ends.
func (c *Client) Renew(ctx context.Context, key string, owner, fence uint64, ttl time.Duration) (protocol.Grant, error) {
	return c.renew(ctx, key, owner, fence, ttl, nil)
}

// renew tells h, unless nil, of the answer in the order of the wire.
func (c *Client) renew(ctx context.Context, key string, owner, fence uint64, ttl time.Duration, h *Hold) (protocol.Grant, error) {
	cl := newCall()
	cl.req = protocol.Request{Op: protocol.OpRenew, Owner: owner, Fence: fence, TTL: millis(ttl)}
	cl.setKey(key)
	cl.hold = h
	return c.grant(ctx, cl)
}

// Downgrade turns an exclusive hold into a shared one. It blocks until the daemon
// has answered or ctx ends.
func (c *Client) Downgrade(ctx context.Context, key string, owner, fence uint64) (protocol.Grant, error) {
	return c.downgrade(ctx, key, owner, fence, nil)
}

func (c *Client) downgrade(ctx context.Context, key string, owner, fence uint64, h *Hold) (protocol.Grant, error) {
	cl := newCall()
	cl.req = protocol.Request{Op: protocol.OpDowngrade, Owner: owner, Fence: fence}
	cl.setKey(key)
	cl.hold = h
	return c.grant(ctx, cl)
}

// Inspect returns the state of the lock of a key.
func (c *Client) Inspect(ctx context.Context, key string) (protocol.State, error) {
	return c.inspect(ctx, key, protocol.Exclusive, 0)
}

// InspectSemaphore returns the state of the semaphore of a key.
func (c *Client) InspectSemaphore(ctx context.Context, key string) (protocol.State, error) {
	return c.inspect(ctx, key, protocol.Permit, 0)
}

// InspectHolders is like Inspect, or like InspectSemaphore if mode is Permit, and also returns the holders'
// names, at most 64, in State.By. The daemon may need several round trips to the store. An older daemon
// leaves By empty.
func (c *Client) InspectHolders(ctx context.Context, key string, mode protocol.Mode) (protocol.State, error) {
	return c.inspect(ctx, key, mode, protocol.FlagHolders)
}

func (c *Client) inspect(ctx context.Context, key string, mode protocol.Mode, flags uint64) (protocol.State, error) {
	cl := newCall()
	cl.req = protocol.Request{Op: protocol.OpInspect, Mode: mode, Flags: flags}
	cl.setKey(key)
	if err := c.do(ctx, cl); err != nil {
		return protocol.State{}, err
	}
	s := cl.reply.State
	cl.free()
	return s, nil
}

// AcquireMany acquires all the keys or none; a.Key is not used. A failure's
// Detail is the index of the key that could not be had. It blocks as Acquire does.
func (c *Client) AcquireMany(ctx context.Context, keys []string, a AcquireArgs) ([]protocol.Grant, error) {
	return c.acquireMany(ctx, keys, &a, nil)
}

func (c *Client) acquireMany(ctx context.Context, keys []string, a *AcquireArgs, hs Holds) ([]protocol.Grant, error) {
	if len(keys) == 0 {
		return nil, &Error{Code: protocol.Invalid, Msg: "no keys"}
	}
	cl := newCall()
	cl.req = a.request(protocol.OpAcquireMany)
	cl.req.Keys = byteKeys(keys)
	cl.holds = hs
	if err := c.do(ctx, cl); err != nil {
		return nil, err
	}
	gs := cl.reply.Grants
	cl.free()
	return gs, nil
}

// ReleaseMany gives up one hold of each key, with the fence at the same index;
// a.Key and a.Fence are not used. It returns one code a key: OK, NotHeld, Unknown. What
// does not fit into one request goes in several, and an error may come after some.
func (c *Client) ReleaseMany(ctx context.Context, keys []string, fences []uint64, a ReleaseArgs) ([]protocol.Code, error) {
	if len(keys) == 0 || len(keys) != len(fences) {
		return nil, &Error{Code: protocol.Invalid, Msg: "no keys, or not as many fences"}
	}
	var all []protocol.Code
	for len(keys) > 0 {
		n := c.fits(keys)
		cl := newCall()
		cl.req = protocol.Request{Op: protocol.OpReleaseMany, Owner: a.Owner, Flags: a.flags(), Keys: byteKeys(keys[:n]), Fences: fences[:n]}
		if err := c.do(ctx, cl); err != nil {
			return all, err
		}
		all = append(all, cl.reply.Codes...)
		cl.free()
		keys, fences = keys[n:], fences[n:]
	}
	return all, nil
}

// fits is how many of the keys a release-many has room for; one at least. Their fences
// make it longer than the acquire-many was.
func (c *Client) fits(keys []string) int {
	const around, each = 64, 16 // bytes at the most, a key's own apart
	size := around
	for i, k := range keys {
		if size += len(k) + each; i > 0 && (size > c.maxFrame || i == protocol.MaxMany) {
			return i
		}
	}
	return len(keys)
}

func byteKeys(keys []string) [][]byte {
	bs := make([][]byte, len(keys))
	for i, k := range keys {
		bs[i] = []byte(k)
	}
	return bs
}

// Ping makes a round trip and returns the daemon's clock, in milliseconds.
func (c *Client) Ping(ctx context.Context) (uint64, error) {
	cl := newCall()
	cl.req = protocol.Request{Op: protocol.OpPing}
	return c.number(ctx, cl)
}

// List returns one page of the keys that begin with prefix and that this host
// holds or waits for: at most limit rows behind after, and where the next page
// starts, empty on the last one. limit 0 is protocol.MaxList.
func (c *Client) List(ctx context.Context, prefix, after string, limit int) (rows []protocol.Row, next string, err error) {
	if limit == 0 {
		limit = protocol.MaxList
	}
	cl := newCall()
	cl.req = protocol.Request{Op: protocol.OpList, Prefix: []byte(prefix), After: []byte(after), Limit: uint64(max(limit, 0))}
	if err := c.do(ctx, cl); err != nil {
		return nil, "", err
	}
	rows, next = cl.reply.Rows, cl.reply.Next
	cl.free()
	return rows, next, nil
}

// Stored returns one page of the locks that the daemon's stores know, whoever holds
// them: at most limit rows behind after, and where the next page starts, empty on the
// last one. A page may have no rows and yet not be the last. limit 0 is
// protocol.MaxList.
func (c *Client) Stored(ctx context.Context, prefix, after string, limit int) (rows []protocol.StoredRow, next string, err error) {
	if limit == 0 {
		limit = protocol.MaxList
	}
	cl := newCall()
	cl.req = protocol.Request{Op: protocol.OpStored, Prefix: []byte(prefix), After: []byte(after), Limit: uint64(max(limit, 0))}
	if err := c.do(ctx, cl); err != nil {
		return nil, "", err
	}
	rows, next = cl.reply.Stored, cl.reply.Next
	cl.free()
	return rows, next, nil
}

// All goes through every page of a list. An error ends it.
func (c *Client) All(ctx context.Context, prefix string) iter.Seq2[protocol.Row, error] {
	return pages(ctx, prefix, c.List)
}

// AllStored goes through every page of what the daemon's stores know. An error
// ends it.
func (c *Client) AllStored(ctx context.Context, prefix string) iter.Seq2[protocol.StoredRow, error] {
	return pages(ctx, prefix, c.Stored)
}

func pages[R any](ctx context.Context, prefix string, page func(ctx context.Context, prefix, after string, limit int) ([]R, string, error)) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		after := ""
		for {
			rows, next, err := page(ctx, prefix, after, 0)
			if err != nil {
				var none R
				yield(none, err)
				return
			}
			for _, r := range rows {
				if !yield(r, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			after = next
		}
	}
}
