package client

import (
	"context"
	"errors"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// Holds are several holds that were granted together, in the order of their keys.
type Holds []*Hold

// LockMany is like AcquireMany, and keeps track of the holds. The caller has to end them with
// Release.
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
		late := func(h *Hold) bool { return !h.Valid() && h.tooLate() }
		if slices.ContainsFunc(hs, late) {
			for _, h := range hs {
				if held, _ := h.giveUp(); held {
					_ = c.releaseUnheard(h.releaseArgs())
				} else {
					_ = h.releaseLost(h.releaseArgs()) // opens the key if the daemon keeps it closed
				}
			}
			return nil, errLate
		}
	}
	return hs, nil
}

// Valid reports whether all are valid now.
func (hs Holds) Valid() bool {
	return !slices.ContainsFunc(hs, func(h *Hold) bool { return !h.Valid() })
}

// Watch blocks until one of them is no longer valid, and returns it with the reason, as
// Hold.Watch does. If ctx ends first, Watch returns its error.
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

// Release releases all of them in one request. From the call on none is valid. It blocks until
// the daemon has answered or ctx ends. The release continues even if ctx ends first. The error is
// about holds that were no longer held, or whose release is not confirmed. If they were acquired
// with AcquireArgs.Quiet, each is released as by ReleaseQuiet, and Release does not block.
func (hs Holds) Release(ctx context.Context) error {
	if len(hs) == 0 {
		return nil
	}
	var errs []error
	var keys []string
	var fences []uint64
	for _, h := range hs {
		if h.quiet {
			errs = append(errs, h.ReleaseQuiet())
			continue
		}
		if held, _ := h.giveUp(); !held {
			errs = append(errs, h.releaseLost(h.releaseArgs()))
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
