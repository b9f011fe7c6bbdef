package client

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/protocol"
)

// Holds are several holds that were granted together, in the order in which their
// keys were given. They are good for what needs them all only while each is.
type Holds []*Hold

// LockMany is AcquireMany with account kept. The caller ends it with Release.
func (c *Client) LockMany(ctx context.Context, keys []string, a AcquireArgs) (Holds, error) {
	hs := make(Holds, len(keys))
	for i, k := range keys {
		hs[i] = c.newHold(k, &a)
	}
	if err := c.mayAcquire(ctx, a.Owner, keys...); err != nil {
		return nil, err
	}
	if _, err := c.acquireMany(ctx, keys, &a, hs); err != nil {
		return nil, err
	}
	if !hs.Valid() {
		late := false
		for _, h := range hs {
			late = late || !h.Valid() && h.tooLate()
		}
		if late {
			for _, h := range hs {
				if h.giveUp() {
					_ = c.ReleaseQuiet(ReleaseArgs{Key: h.key, Owner: h.owner, Fence: h.Fence()})
				} else {
					_ = h.Release(ctx) // a lost hold: Release does not block, and opens the key if the daemon keeps it closed
				}
			}
			return nil, errLate
		}
	}
	return hs, nil
}

// Valid says whether all may be relied upon now.
func (hs Holds) Valid() bool {
	for _, h := range hs {
		if !h.Valid() {
			return false
		}
	}
	return true
}

// Watch blocks until one of them cannot be relied upon any more, and returns which
// and why as Hold.Watch does; or until ctx ends, and returns its error.
func (hs Holds) Watch(ctx context.Context) (*Hold, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type end struct {
		h   *Hold
		err error
	}
	ends := make(chan end, len(hs))
	for _, h := range hs {
		go func() { ends <- end{h, h.Watch(ctx)} }()
	}
	first := <-ends
	cancel()
	for range hs[1:] {
		<-ends
	}
	return first.h, first.err
}

// Release gives all of them up in one request: from the call on none is valid. It
// blocks until the daemon has answered or ctx ends; the release goes on all the
// same. The error is of those that were not held any more, or are not confirmed.
func (hs Holds) Release(ctx context.Context) error {
	if len(hs) == 0 {
		return nil
	}
	var errs []error
	var keys []string
	var fences []uint64
	for _, h := range hs {
		if !h.giveUp() {
			errs = append(errs, h.Release(ctx)) // does not block
			continue
		}
		keys, fences = append(keys, h.key), append(fences, h.Fence())
	}
	if len(keys) == 0 {
		return errors.Join(errs...)
	}
	codes, err := hs[0].c.ReleaseMany(ctx, keys, fences, ReleaseArgs{Owner: hs[0].owner})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for i, code := range codes {
		if code != protocol.OK {
			errs = append(errs, &Error{Code: code, Msg: keys[i]})
		}
	}
	return errors.Join(errs...)
}
