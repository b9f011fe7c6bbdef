package cache

import (
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file handles stores that fail.

// noteFailure records that the store has not carried out a request. The pause before the next
// attempt grows with each failure.
func (t *Table) noteFailure(l *Lease, now int64, err error) {
	r := l.withOptional()
	if r.failSince == 0 {
		r.failSince = max(now, 1)
	}
	pause := t.cfg.RetryMin << min(r.fails, 16)
	r.fails++
	r.err = err
	l.retryAt = now + t.jitter(min(max(pause, t.cfg.RetryMin), t.cfg.RetryMax))
}

// noteSuccess records that the store has carried out a request.
func (t *Table) noteSuccess(l *Lease) {
	if r := l.optional; r != nil {
		r.failSince, r.fails, r.err = 0, 0, nil
	}
	l.retryAt = 0
}

// pausesAfterFailure reports whether the next request for l waits because the last one has failed.
func (l *Lease) pausesAfterFailure(now int64) bool {
	return l.optional != nil && l.optional.fails > 0 && now < l.retryAt
}

// asksForWaiters reports whether the waiters that l serves depend on l's store. The waiters of a
// semaphore do not depend on a permit with a pending release, nor on one at the earlier store of a
// moved key.
func (l *Lease) asksForWaiters() bool {
	return l.permit() == nil || !l.moved() && l.state != stateReleasing && l.state != stateClosed
}

// refuseTries refuses the tries among the waiters of l.
func (t *Table) refuseTries(l *Lease, c protocol.Code, left, now int64, out *Effects) {
	if c == protocol.Unavailable && !l.asksForWaiters() {
		return
	}
	var err error
	if c != protocol.Busy {
		err = t.failure(l)
	}
	for w := range l.queue().allTries() {
		t.dismiss(w, c, left, err, now, out)
	}
}

// endGrace ends the waits for l that have outlasted the grace for a failing store, once no request
// is in flight. It returns when that time comes.
func (t *Table) endGrace(l *Lease, now int64, out *Effects) (wake int64) {
	since := t.failingSince(l)
	if since == 0 || l.op != 0 || l.queue().empty() {
		return Forever
	}
	if end := since + int64(t.cfg.Grace); now < end {
		return end
	}
	for w := range l.queue().all() {
		t.dismiss(w, protocol.Unavailable, -1, t.failure(l), now, out)
	}
	return Forever
}

// failingSince returns the time since which requests for l have failed; 0 when they succeed, or
// when l's waiters wait for a hold on this host.
func (t *Table) failingSince(l *Lease) int64 {
	if l.nHolds > 0 || !l.asksForWaiters() {
		return 0
	}
	l = l.failing()
	if r := l.optional; r != nil && r.failSince != 0 {
		return r.failSince
	}
	if l.state == stateHeld {
		return 0
	}
	return l.st.downAt
}

// failing returns the lease whose failures l's waiters notice: l, or a permit of l's semaphore.
func (l *Lease) failing() *Lease {
	if sem := l.semaphore(); sem != nil {
		if p := sem.failingPermit(); p != nil {
			return &p.Lease
		}
	}
	return l
}

// failure returns an error text that explains why requests for l fail.
func (t *Table) failure(l *Lease) error {
	l = l.failing()
	err := l.st.err
	if l.optional != nil && l.optional.err != nil {
		err = l.optional.err
	}
	if l.moved() && err != nil {
		return fmt.Errorf("%w: %w", errEarlierStore, err)
	}
	return err
}

// errEarlierStore explains why a moved key cannot be requested at its present store yet.
var errEarlierStore = errors.New(
	"the key has moved, and its earlier store has not confirmed its release")
