package cache

import "strings"

// Scans of a table, for views. A scan goes through the holds, and then the waiters, in order of arrival. It does
// so in pieces, so that other events can use the table in between. Holds and waiters that end meanwhile are not
// shown.

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
	Forced       bool // the hold is lost, but keeps the key closed, until Until at the latest
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

// BeginScan begins a scan of t, at the oldest entries or at the newest. A table has one scan at a time.
func (t *Table) BeginScan(newest bool) {
	t.holds.begin(newest)
	t.waits.begin(newest)
	t.places = make(map[*Lease]int32)
}

// EndScan ends the scan, complete or not.
func (t *Table) EndScan() { t.holds.at, t.waits.at, t.places = nil, nil, nil }

// ScanHolds visits up to most further holds. It appends up to room of those whose keys begin with prefix. looked
// is the number of visited holds; more is true if holds remain.
func (t *Table) ScanHolds(found []Held, prefix string, room, most int) (_ []Held, looked int, more bool) {
	for room += len(found); t.holds.at != nil && looked < most && len(found) < room; looked++ {
		h := t.holds.at
		t.holds.next()
		if strings.HasPrefix(h.l.key, prefix) {
			found = append(found, t.shown(h))
		}
	}
	return found, looked, t.holds.at != nil
}

func (t *Table) shown(h *hold) Held {
	l := h.l
	return Held{Key: l.key, Mode: h.mode, Session: h.s, Owner: h.owner, Fence: h.fence, Class: h.class, Since: h.since,
		Until: t.valid(h), TTL: t.lifetime(l), Waiters: l.queue().nWaits, Fixed: h.end != 0 && !h.forced, Forced: h.forced}
}

// ScanWaiters visits waiters as ScanHolds visits holds.
func (t *Table) ScanWaiters(found []Waiting, prefix string, room, most int) (_ []Waiting, looked int, more bool) {
	for room += len(found); t.waits.at != nil && looked < most && len(found) < room; looked++ {
		w := t.waits.at
		t.waits.next()
		if strings.HasPrefix(w.l.key, prefix) {
			found = append(found, t.shownWaiter(w))
		}
	}
	return found, looked, t.waits.at != nil
}

// shownWaiter describes w. It counts the places of each key's waiters during the scan, because the scan visits
// the waiters of a key in the order of its queue.
func (t *Table) shownWaiter(w *waiter) Waiting {
	l := w.l
	n := int32(1)
	if l.nWaits > 1 {
		n = min(t.places[l]+1, l.nWaits) // some may have left since
		t.places[l] = n
	}
	if t.waits.back {
		n = l.nWaits - n + 1
	}
	v := Waiting{Key: l.key, Mode: w.mode, Session: w.req.Session, Owner: w.owner, Since: w.since, Deadline: w.deadline, Place: n}
	if l.holds != nil {
		v.Holder = l.holds.s
	}
	return v
}
