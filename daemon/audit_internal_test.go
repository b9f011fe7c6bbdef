package daemon

import (
	"slices"
	"testing"
)

// A log that stands still keeps nobody, and says in the end what is missing.
func TestNobodyWaitsForTheLog(t *testing.T) {
	var owners []uint64
	var missing uint64
	stuck, reached := make(chan struct{}), make(chan struct{}, 1)
	a := newBacklog(3, func(r *record) {
		select {
		case reached <- struct{}{}:
		default:
		}
		<-stuck
		owners = append(owners, r.Owner)
	}, func(n uint64) { missing += n })
	put := func(owner uint64) {
		a.put(1, func(_ int, r *record) { r.Owner = owner })
	}
	put(1)
	<-reached // it writes the first, and the next three may wait
	for owner := range uint64(5) {
		put(owner + 2)
	}
	close(stuck)
	a.close()
	if !slices.Equal(owners, []uint64{1, 2, 3, 4}) || missing != 2 {
		t.Errorf("%v were written, %d said to be missing", owners, missing)
	}
}
