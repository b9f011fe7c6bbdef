package cache

import (
	"slices"
	"strings"
)

// Row describes a key on this host, for a list.
type Row struct {
	Key     string
	Mode    Mode
	Holders int32
	Waiters int32
	Fence   uint64
	Left    int64    // nanoseconds; -1 when not held
	Holder  *Session // the newest holder; nil when not held
}

// Rows appends up to most rows, in order. It lists the keys that begin with prefix, come after the place after,
// have holders or waiters, and for which show returns true.
func (t *Table) Rows(rows []Row, prefix, after string, most int, now int64, show func(key string) bool) []Row {
	var found []*Lease
	for _, of := range []map[string]*Lease{t.leases, t.sems} {
		for k, l := range of {
			if strings.HasPrefix(k, prefix) && l.rowPlace() > after && l.shows() && show(k) {
				found = append(found, l)
			}
		}
	}
	slices.SortFunc(found, func(a, b *Lease) int { return strings.Compare(a.rowPlace(), b.rowPlace()) })
	for _, l := range found[:min(len(found), most)] {
		rows = append(rows, t.row(l, now))
	}
	return rows
}

// Place returns the place of r in the list, for the argument after of Rows. It is opaque, and at most one byte
// longer than the key.
func (r *Row) Place() string { return place(r.Key, r.Mode == Permit) }

func (l *Lease) rowPlace() string { return place(l.key, l.sem != nil) }

// place orders a semaphore directly after the lock of the same key. Keys contain no zero bytes.
func place(key string, semaphore bool) string {
	if semaphore {
		return key + "\x00"
	}
	return key
}

func (l *Lease) shows() bool {
	return l.nHolds > 0 || l.nWaits > 0 || l.sem != nil && len(l.sem.holds) > 0
}

func (t *Table) row(l *Lease, now int64) Row {
	r := Row{Key: l.key, Mode: l.heldMode, Holders: l.nHolds, Waiters: l.nWaits, Left: -1}
	if l.sem != nil {
		r.Mode = Permit
		for _, p := range l.sem.permits {
			if p.nHolds > 0 {
				r.Holders++
				t.rowHolder(&r, p, now)
			}
		}
		return r
	}
	if l.nHolds > 0 {
		t.rowHolder(&r, l, now)
	} else {
		r.Mode = l.waitHead.mode
	}
	return r
}

// rowHolder makes r show l's holder if it is the newest.
func (t *Table) rowHolder(r *Row, l *Lease, now int64) {
	if f := l.newestFence(); r.Holder == nil || f > r.Fence {
		r.Fence, r.Left, r.Holder = f, t.deadline(l)-now, l.holds.s
	}
}
