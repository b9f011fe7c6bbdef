package cache

import (
	"slices"
	"strings"
)

// This file makes the pages of the protocol's list: keys in order, each with a summary of its holds
// and waiters. A page has to look at all keys of the table, so views use scan.go instead.

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

// Rows appends up to limit rows, in order. It lists the keys that begin with prefix, have holders
// or waiters, and for which show returns true. The list begins behind the row whose Place is after.
func (t *Table) Rows(rows []Row, prefix, after string, limit int, now int64,
	show func(key string) bool) []Row {
	var found []*Lease
	for l := range t.heads() {
		if strings.HasPrefix(l.key, prefix) && l.rowPlace() > after && l.shows() && show(l.key) {
			found = append(found, l)
		}
	}
	slices.SortFunc(found, func(a, b *Lease) int {
		return strings.Compare(a.rowPlace(), b.rowPlace())
	})
	for _, l := range found[:min(len(found), limit)] {
		rows = append(rows, t.row(l, now))
	}
	return rows
}

// Place returns the place of r in the list, for the argument after of Rows. It is opaque, and at
// most one byte longer than the key.
func (r *Row) Place() string { return place(r.Key, r.Mode == Permit) }

func (l *Lease) rowPlace() string { return place(l.key, !l.isLock()) }

// place orders a semaphore directly after the lock of the same key. Keys contain no zero bytes.
func place(key string, semaphore bool) string {
	if semaphore {
		return key + "\x00"
	}
	return key
}

func (l *Lease) shows() bool {
	sem := l.semaphore()
	return l.nHolds > 0 || !l.queue().empty() || sem != nil && len(sem.byFence) > 0
}

func (t *Table) row(l *Lease, now int64) Row {
	r := Row{Key: l.key, Mode: l.heldMode, Holders: l.nHolds, Waiters: l.queue().n, Left: -1}
	if sem := l.semaphore(); sem != nil {
		r.Mode = Permit
		for _, p := range sem.permits {
			if p.nHolds > 0 {
				r.Holders++
				t.rowHolder(&r, &p.Lease, now)
			}
		}
		return r
	}
	if l.nHolds > 0 {
		t.rowHolder(&r, l, now)
	} else {
		r.Mode = l.queue().front().mode
	}
	return r
}

// rowHolder makes r show l's holder if it is the newest.
func (t *Table) rowHolder(r *Row, l *Lease, now int64) {
	if f := l.newestFence(); r.Holder == nil || f > r.Fence {
		h := l.holds.first
		r.Fence, r.Left, r.Holder = f, t.deadline(l)-now, h.s
		if h.detached() {
			r.Left = h.end - now
		}
	}
}
