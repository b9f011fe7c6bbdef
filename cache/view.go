package cache

import (
	"slices"
	"strings"
)

// Row is one key as this host knows it.
type Row struct {
	Key     string
	Mode    Mode
	Holders int32
	Waiters int32
	Fence   uint64
	Left    int64    // nanoseconds; -1 when not held
	Holder  *Session // one of them; nil when not held
}

// Rows appends what is held or waited for of the keys that begin with prefix, after the
// place after, in order: at most most rows of keys that show lets through.
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

// Place is where the list goes on after r: opaque, and longer than a key by one byte at
// the most.
func (r *Row) Place() string { return place(r.Key, r.Mode == Permit) }

func (l *Lease) rowPlace() string { return place(l.key, l.sem != nil) }

// place puts a semaphore right behind the lock of the same key: keys have no zero bytes.
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

// rowHolder has r show l's holder if it is the newest.
func (t *Table) rowHolder(r *Row, l *Lease, now int64) {
	if f := l.newestFence(); r.Holder == nil || f > r.Fence {
		r.Fence, r.Left, r.Holder = f, t.deadline(l)-now, l.holds.s
	}
}
