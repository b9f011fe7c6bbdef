package cache

import (
	"errors"
	"fmt"
)

// Stores that fail.

// fail records that the store has not carried out a request. The pause before the next attempt grows with
// each failure.
func (t *Table) fail(l *Lease, now int64, err error) {
	r := l.withOptional()
	if r.failSince == 0 {
		r.failSince = max(now, 1)
	}
	pause := t.cfg.RetryMin << min(r.fails, 16)
	r.fails++
	r.err = err
	l.retryAt = now + t.jitter(min(max(pause, t.cfg.RetryMin), t.cfg.RetryMax))
}

func (t *Table) succeed(l *Lease) {
	if r := l.optional; r != nil {
		r.failSince, r.fails, r.err = 0, 0, nil
	}
	l.retryAt = 0
}

// asksForWaiters reports whether the waiters that l serves depend on l's store. The waiters of a semaphore
// do not depend on a permit with a pending release, nor on one at the earlier store of a moved key.
func (l *Lease) asksForWaiters() bool {
	return l.head == nil || l.st == l.head.st && l.state != stateReleasing && l.state != stateClosed
}

func (t *Table) refuseTries(l *Lease, c Code, left, now int64, out *Effects) {
	if c == CodeUnavailable && !l.asksForWaiters() {
		return
	}
	var err error
	if c != CodeBusy {
		err = t.failure(l)
	}
	from := l.queue()
	for w := from.waitHead; w != nil && from.nTries > 0; {
		next := w.next
		if w.try {
			t.dismiss(w, c, left, err, now, out)
		}
		w = next
	}
}

// refuseWaiters ends waits that have outlasted the grace for a failing store.
func (t *Table) refuseWaiters(l *Lease, now int64, out *Effects) {
	from := l.queue()
	for from.waitHead != nil {
		t.dismiss(from.waitHead, CodeUnavailable, -1, t.failure(l), now, out)
	}
}

// failingSince returns the time since which requests for l have failed; 0 when they succeed, or when
// l's waiters wait for a hold on this host.
func (t *Table) failingSince(l *Lease) int64 {
	if l.nHolds > 0 || !l.asksForWaiters() {
		return 0
	}
	if p := l.worst(); p != nil {
		l = p
	}
	if r := l.optional; r != nil && r.failSince != 0 {
		return r.failSince
	}
	if l.state == stateHeld {
		return 0
	}
	return l.st.downAt
}

// failure returns an error text that explains why requests for l fail.
func (t *Table) failure(l *Lease) error {
	if p := l.worst(); p != nil {
		l = p
	}
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
var errEarlierStore = errors.New("the key has moved, and its earlier store has not confirmed its release")
