package cache

import "strings"

// This file scans a table for views. A scan visits the holds, and then the waiters, in order of
// arrival. It does so in pieces, so that other events can use the table in between. It does not
// show holds and waiters that end before it visits them.

// Held describes a hold. Times are in nanoseconds of the boot clock.
type Held struct {
	Key          string
	Mode         Mode
	Session      *Session
	Owner, Fence uint64 // Fence is 0 when this host granted it alone
	Class        uint16
	Since, Until int64
	TTL          int64 // of the lease: the longest time to Until
	Waiters      int32 // for the key, on this host
	Fixed        bool
	Forced       bool // the hold is lost, but keeps the key closed until Until, or for a shorter time
	Detached     bool // no client has it; Session is its user's, and it ends at Until
}

// Waiting describes a waiter.
type Waiting struct {
	Key      string
	Mode     Mode
	Session  *Session
	Owner    uint64
	Since    int64
	Deadline int64    // of the wait; Forever without one
	Place    int32    // among this host's waiters for the key, from 1
	Holder   *Session // one of the lock's holders on this host; nil without any, and for semaphores
}

// BeginScan begins a scan of t, at the oldest entries or at the newest. A table has one scan at a
// time.
func (t *Table) BeginScan(newest bool) {
	t.holds.begin(newest)
	t.waits.begin(newest)
	t.places = make(map[*Lease]int32)
}

// EndScan ends the scan, complete or not.
func (t *Table) EndScan() { t.holds.at, t.waits.at, t.places = nil, nil, nil }

// ScanHolds visits up to limit further holds. It appends up to room of those whose keys begin with
// prefix. looked is the number of visited holds; more is true if holds remain.
func (t *Table) ScanHolds(found []Held, prefix string, room, limit int) (
	_ []Held, looked int, more bool) {
	for room += len(found); t.holds.at != nil && looked < limit && len(found) < room; looked++ {
		h := t.holds.at
		t.holds.step()
		if strings.HasPrefix(h.l.key, prefix) {
			found = append(found, t.describeHold(h))
		}
	}
	return found, looked, t.holds.at != nil
}

func (t *Table) describeHold(h *hold) Held {
	l := h.l
	v := Held{Key: l.key, Mode: h.mode, Session: h.s, Owner: h.owner, Fence: h.fence,
		Class: h.class, Since: h.since, Until: t.validUntil(h), TTL: t.lifetime(l), Waiters: l.queue().n,
		Fixed: h.end != 0 && !h.forced, Forced: h.forced, Detached: h.detached()}
	if v.Detached {
		v.Until = h.end
	}
	return v
}

// ScanWaiters visits waiters as ScanHolds visits holds.
func (t *Table) ScanWaiters(found []Waiting, prefix string, room, limit int) (
	_ []Waiting, looked int, more bool) {
	for room += len(found); t.waits.at != nil && looked < limit && len(found) < room; looked++ {
		w := t.waits.at
		t.waits.step()
		if strings.HasPrefix(w.l.key, prefix) {
			found = append(found, t.describeWaiter(w))
		}
	}
	return found, looked, t.waits.at != nil
}

// describeWaiter describes w.
func (t *Table) describeWaiter(w *waiter) Waiting {
	l, q := w.l, w.l.queue()
	n := q.place(w, t.places[l], t.waits.back)
	if q.n > 1 {
		t.places[l]++
	}
	v := Waiting{Key: l.key, Mode: w.mode, Session: w.req.Session, Owner: w.owner, Since: w.since,
		Deadline: w.deadline, Place: n}
	if l.nHolds > 0 {
		v.Holder = l.holds.first.s
	}
	return v
}
