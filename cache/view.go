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

// Rows appends the keys that begin with prefix and come after after, in their
// order, at most most of them that show lets through.
func (t *Table) Rows(rows []Row, prefix, after string, most int, now int64, show func(key string) bool) []Row {
	var keys []string
	for k, l := range t.leases {
		if k > after && strings.HasPrefix(k, prefix) && (l.nHolds > 0 || l.nWaits > 0) && show(k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys[:min(len(keys), most)] {
		l := t.leases[k]
		r := Row{Key: k, Mode: l.heldMode, Holders: l.nHolds, Waiters: l.nWaits, Left: -1}
		if l.nHolds > 0 {
			r.Fence, r.Left, r.Holder = l.newestFence(), t.deadline(l)-now, l.holds.s
		} else {
			r.Mode = l.waitHead.mode
		}
		rows = append(rows, r)
	}
	return rows
}
