package cache

import "strings"

// What there is now, for people. A look at a table goes through its holds, and then its
// waiters, in the order in which they came, in pieces: between two of them others get the
// table, and what has gone meanwhile is not shown.

// Held is a hold as a look finds it. Times are nanoseconds of the boot clock.
type Held struct {
	Key          string
	Mode         Mode
	Session      *Session
	Owner, Fence uint64 // Fence is 0 when this host granted it alone
	Class        uint16
	Since, Until int64
	TTL          int64 // of the lease: what Until is away at the most
	Waiters      int32 // behind the key on this host
	Fixed        bool
	Forced       bool // lost already: only the key is closed, until Until at most
}

// Waiting is a waiter as a look finds it.
type Waiting struct {
	Key      string
	Mode     Mode
	Session  *Session
	Owner    uint64
	Since    int64
	Deadline int64    // of the wait; Forever when it has none
	Place    int32    // among this host's, from 1
	Holder   *Session // one of those that hold the lock on this host; nil when none does, and for semaphores
}

// BeginScan begins a look at t, from the oldest or from the newest on. There is one at a time.
func (t *Table) BeginScan(newest bool) {
	t.holds.begin(newest)
	t.waits.begin(newest)
	t.places = make(map[*Lease]int32)
}

// EndScan ends it, whether it is through or not.
func (t *Table) EndScan() { t.holds.at, t.waits.at, t.places = nil, nil, nil }

// ScanHolds looks at up to most more holds, and appends those of keys that begin with prefix
// until there are room of them. looked is how many it has looked at; more says that there are
// others.
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

// ScanWaiters does the same for waiters, as ScanHolds for holds.
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

// shownWaiter counts places as it goes: a table's waiters are in the order of each key's.
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
