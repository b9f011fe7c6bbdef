package client

import (
	"context"
	"iter"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Forever is a wait without bound.
const Forever time.Duration = -1

// AcquireArgs are the arguments of an acquire.
type AcquireArgs struct {
	Key   string
	Owner uint64        // identifies a thread or a task. Re-entrancy is counted per owner
	Mode  protocol.Mode // exclusive unless set
	Wait  time.Duration // 0 tries, negative waits without bound; rounded up to milliseconds
	TTL   time.Duration // of the lease; 0 is the namespace's; rounded up to milliseconds
	// Permits, if not 0, requests one permit of the semaphore Key, which has that many permits. Mode
	// is ignored then, and there is no re-entry.
	Permits uint32
	Fixed   bool // only the caller renews it, and it ends with lost
	// Keep is how long after the grant the key stays closed, even if the hold is released or this
	// client ends before; rounded up to milliseconds. Not for AcquireMany.
	Keep time.Duration
	// Quiet makes Release of the hold quiet: see Hold.ReleaseQuiet. Only Lock and LockMany use it.
	Quiet bool
	// Traceparent is the caller's position in a trace, in the form of W3C Trace Context. It is not
	// sent if it is malformed.
	Traceparent string
}

func (a *AcquireArgs) request(op protocol.Op) protocol.Request {
	q := protocol.Request{Op: op, Owner: a.Owner, Mode: a.Mode, Wait: waitMillis(a.Wait),
		TTL: millis(a.TTL)}
	if op == protocol.OpAcquire {
		q.Keep = millis(a.Keep)
	}
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

// Acquire blocks until the key is granted, the wait is over, or ctx ends. If ctx ends first, the
// acquire is withdrawn, and a grant that crosses the withdrawal is released. After an error
// nothing is held.
func (c *Client) Acquire(ctx context.Context, a AcquireArgs) (protocol.Grant, error) {
	return c.acquire(ctx, &a, nil)
}

func (c *Client) acquire(ctx context.Context, a *AcquireArgs, h *Hold) (protocol.Grant, error) {
	return exchange(ctx, c, keyedCall(a.request(protocol.OpAcquire), a.Key, h), grantOf)
}

// exchange sends cl, waits for its end and returns a part of its reply.
func exchange[T any](ctx context.Context, c *Client, cl *call, part func(*Reply) T) (T, error) {
	if err := c.do(ctx, cl); err != nil {
		var none T
		return none, err
	}
	v := part(&cl.reply)
	cl.free()
	return v, nil
}

func grantOf(r *Reply) protocol.Grant { return r.Grant }
func numberOf(r *Reply) uint64        { return r.Number }

// ReleaseArgs identify a hold to release.
type ReleaseArgs struct {
	Key          string
	Owner, Fence uint64
	Async        bool // do not wait for the store's confirmation
	All          bool // the whole hold, whatever its count
	Now          bool // even if it has a Keep that is not over; not for ReleaseMany
}

func (a *ReleaseArgs) flags() (f uint64) {
	if a.Async {
		f |= protocol.FlagAsync
	}
	if a.All {
		f |= protocol.FlagAll
	}
	if a.Now {
		f |= protocol.FlagNow
	}
	return f
}

// ReleaseDetached releases the detached hold of key with this fence: a hold with a Keep that its
// owner has released, or whose session has ended. It has to belong to the same user.
// ReleaseDetached blocks until the daemon has answered or ctx ends. The release continues even if
// ctx ends first.
func (c *Client) ReleaseDetached(ctx context.Context, key string, fence uint64) error {
	q := protocol.Request{Op: protocol.OpRelease, Fence: fence, Flags: protocol.FlagDetached}
	_, err := exchange(ctx, c, keyedCall(q, key, nil), numberOf)
	return err
}

// Release releases one count of a hold, or all of it, and returns the remaining count. It blocks
// until the daemon has answered or ctx ends. The release continues even if ctx ends first.
func (c *Client) Release(ctx context.Context, a ReleaseArgs) (left uint64, err error) {
	q := protocol.Request{Op: protocol.OpRelease, Owner: a.Owner, Fence: a.Fence, Flags: a.flags()}
	return exchange(ctx, c, keyedCall(q, a.Key, nil), numberOf)
}

// ReleaseQuiet sends a quiet release: the daemon does not answer it, and OnLost reports a failure.
// This saves a round trip if another acquire follows. It does not block. An error means that
// nothing was sent.
func (c *Client) ReleaseQuiet(a ReleaseArgs) error {
	return c.releaseWith(a, a.flags()|protocol.FlagQuiet)
}

// releaseUnheard sends a release, and ignores the answer.
func (c *Client) releaseUnheard(a ReleaseArgs) error { return c.releaseWith(a, a.flags()) }

func (c *Client) releaseWith(a ReleaseArgs, flags uint64) error {
	c.mu.Lock()
	_, err := c.putLocked(&protocol.Request{Op: protocol.OpRelease, Key: []byte(a.Key), Owner: a.Owner,
		Fence: a.Fence, Flags: flags})
	if err != nil {
		c.mu.Unlock()
		return err
	}
	c.flushUnlock(false)
	return nil
}

// Renew restarts a hold's TTL, with a new length unless ttl is 0. It never shortens a validity
// that was stated before. It blocks until the daemon has answered or ctx ends.
func (c *Client) Renew(
	ctx context.Context, key string, owner, fence uint64, ttl time.Duration,
) (protocol.Grant, error) {
	return c.renew(ctx, key, owner, fence, ttl, nil)
}

// renew also passes the answer to h, in the order of the wire, unless h is nil.
func (c *Client) renew(
	ctx context.Context, key string, owner, fence uint64, ttl time.Duration, h *Hold,
) (protocol.Grant, error) {
	q := protocol.Request{Op: protocol.OpRenew, Owner: owner, Fence: fence, TTL: millis(ttl)}
	return exchange(ctx, c, keyedCall(q, key, h), grantOf)
}

// Downgrade turns an exclusive hold into a shared one. It blocks until the daemon
// has answered or ctx ends.
func (c *Client) Downgrade(
	ctx context.Context, key string, owner, fence uint64,
) (protocol.Grant, error) {
	return c.downgrade(ctx, key, owner, fence, nil)
}

func (c *Client) downgrade(
	ctx context.Context, key string, owner, fence uint64, h *Hold,
) (protocol.Grant, error) {
	q := protocol.Request{Op: protocol.OpDowngrade, Owner: owner, Fence: fence}
	return exchange(ctx, c, keyedCall(q, key, h), grantOf)
}

// Inspect returns the state of the lock of a key.
func (c *Client) Inspect(ctx context.Context, key string) (protocol.State, error) {
	return c.inspect(ctx, key, protocol.Exclusive, 0)
}

// InspectSemaphore returns the state of the semaphore of a key.
func (c *Client) InspectSemaphore(ctx context.Context, key string) (protocol.State, error) {
	return c.inspect(ctx, key, protocol.Permit, 0)
}

// InspectHolders is like Inspect, or like InspectSemaphore if mode is Permit, and also returns
// the holders' names, at most 64, in State.By. The daemon may need several round trips to the
// store. An older daemon leaves By empty.
func (c *Client) InspectHolders(
	ctx context.Context, key string, mode protocol.Mode,
) (protocol.State, error) {
	return c.inspect(ctx, key, mode, protocol.FlagHolders)
}

func (c *Client) inspect(
	ctx context.Context, key string, mode protocol.Mode, flags uint64,
) (protocol.State, error) {
	q := protocol.Request{Op: protocol.OpInspect, Mode: mode, Flags: flags}
	return exchange(ctx, c, keyedCall(q, key, nil), func(r *Reply) protocol.State { return r.State })
}

// ForceUnlock ends all holds of a key on this host by force: of its semaphore if mode is Permit,
// else of its lock. If fence is not 0, it ends only the holds with that fence. It returns how many
// it has ended. The error is ErrDenied unless this user may unlock by force.
func (c *Client) ForceUnlock(
	ctx context.Context, key string, mode protocol.Mode, fence uint64,
) (ended uint64, err error) {
	q := protocol.Request{Op: protocol.OpForceUnlock, Mode: mode, Fence: fence}
	return exchange(ctx, c, keyedCall(q, key, nil), numberOf)
}

// AcquireMany acquires all the keys or none; a.Key is not used. A failure's Detail is the index
// of the key that could not be acquired. It blocks as Acquire does.
func (c *Client) AcquireMany(
	ctx context.Context, keys []string, a AcquireArgs,
) ([]protocol.Grant, error) {
	return c.acquireMany(ctx, keys, &a, nil)
}

func (c *Client) acquireMany(
	ctx context.Context, keys []string, a *AcquireArgs, hs Holds,
) ([]protocol.Grant, error) {
	if len(keys) == 0 {
		return nil, &Error{Code: protocol.Invalid, Msg: "no keys"}
	}
	cl := newCall()
	cl.req = a.request(protocol.OpAcquireMany)
	cl.req.Keys = byteKeys(keys)
	cl.holds = hs
	return exchange(ctx, c, cl, func(r *Reply) []protocol.Grant { return r.Grants })
}

// AcquireAny acquires one of the keys, at most protocol.MaxAny, and returns its index; a.Key is not
// used. It takes the key that it can have first. It blocks as Acquire does.
func (c *Client) AcquireAny(
	ctx context.Context, keys []string, a AcquireArgs,
) (index int, g protocol.Grant, err error) {
	r, err := c.acquireAny(ctx, keys, &a, nil)
	return r.Index, r.Grant, err
}

// acquireAny passes the grant to h, unless h is nil, and sets its key.
func (c *Client) acquireAny(
	ctx context.Context, keys []string, a *AcquireArgs, h *Hold,
) (Reply, error) {
	if len(keys) == 0 {
		return Reply{}, &Error{Code: protocol.Invalid, Msg: "no keys"}
	}
	cl := newCall()
	cl.req = a.request(protocol.OpAcquireAny)
	cl.req.Keys = byteKeys(keys)
	cl.hold = h
	return exchange(ctx, c, cl, func(r *Reply) Reply { return *r })
}

// ReleaseMany releases one hold of each key, with the fence at the same index; a.Key and a.Fence
// are not used. It returns one code per key: OK, NotHeld or Unknown. It sends as many requests as
// needed, so some keys may be released before an error.
func (c *Client) ReleaseMany(
	ctx context.Context, keys []string, fences []uint64, a ReleaseArgs,
) ([]protocol.Code, error) {
	if len(keys) == 0 || len(keys) != len(fences) {
		return nil, &Error{Code: protocol.Invalid, Msg: "no keys, or not as many fences"}
	}
	var all []protocol.Code
	for len(keys) > 0 {
		n := c.fits(keys)
		cl := newCall()
		cl.req = protocol.Request{Op: protocol.OpReleaseMany, Owner: a.Owner, Flags: a.flags() &^ protocol.FlagNow,
			Keys: byteKeys(keys[:n]), Fences: fences[:n]}
		codes, err := exchange(ctx, c, cl, func(r *Reply) []protocol.Code { return r.Codes })
		if err != nil {
			return all, err
		}
		all = append(all, codes...)
		keys, fences = keys[n:], fences[n:]
	}
	return all, nil
}

// fits returns how many of the keys fit into one release-many; at least one. A release-many is
// longer than the acquire-many of the same keys, because it has the fences.
func (c *Client) fits(keys []string) int {
	const around, each = 64, 16 // maximum number of bytes besides the keys
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
	return exchange(ctx, c, cl, numberOf)
}

// List returns one page of the keys that begin with prefix and that this host holds or waits for.
// The page has at most limit rows after the position after. A limit of 0 means protocol.MaxList.
// next is the position of the next page, and empty on the last one.
func (c *Client) List(
	ctx context.Context, prefix, after string, limit int,
) (rows []protocol.Row, next string, err error) {
	r, err := c.list(ctx, protocol.OpList, prefix, after, limit)
	return r.Rows, r.Next, err
}

// Stored returns one page of the locks that the daemon's stores know, no matter which host holds
// them. after, next and limit are as for List. A page may have no rows and yet not be the last.
func (c *Client) Stored(
	ctx context.Context, prefix, after string, limit int,
) (rows []protocol.StoredRow, next string, err error) {
	r, err := c.list(ctx, protocol.OpStored, prefix, after, limit)
	return r.Stored, r.Next, err
}

// list returns one page of a list.
func (c *Client) list(
	ctx context.Context, op protocol.Op, prefix, after string, limit int,
) (Reply, error) {
	if limit == 0 {
		limit = protocol.MaxList
	}
	cl := newCall()
	cl.req = protocol.Request{Op: op, Prefix: []byte(prefix), After: []byte(after),
		Limit: uint64(max(limit, 0))}
	return exchange(ctx, c, cl, func(r *Reply) Reply { return *r })
}

// All iterates over all pages of List. It ends after an error.
func (c *Client) All(ctx context.Context, prefix string) iter.Seq2[protocol.Row, error] {
	return pages(ctx, prefix, c.List)
}

// AllStored iterates over all pages of Stored. It ends after an error.
func (c *Client) AllStored(
	ctx context.Context, prefix string,
) iter.Seq2[protocol.StoredRow, error] {
	return pages(ctx, prefix, c.Stored)
}

func pages[R any](
	ctx context.Context, prefix string, page func(ctx context.Context, prefix, after string,
		limit int) ([]R, string, error),
) iter.Seq2[R, error] {
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
