package audit

import (
	"slices"
	"testing"
)

// A log that stands still keeps nobody, and says in the end what is missing.
func TestNobodyWaitsForTheLog(t *testing.T) {
	var written []uint64
	var missing uint64
	stuck, reached := make(chan struct{}), make(chan struct{}, 1)
	a := NewBacklog(3, func(ns []uint64) {
		select {
		case reached <- struct{}{}:
		default:
		}
		<-stuck
		written = append(written, ns...)
	}, func(n uint64) { missing += n })
	put := func(n uint64) {
		a.Put(1, func(q []uint64) []uint64 { return append(q, n) })
	}
	put(1)
	<-reached // it writes the first, and the next three may wait
	for n := range uint64(5) {
		put(n + 2)
	}
	close(stuck)
	a.Close()
	if !slices.Equal(written, []uint64{1, 2, 3, 4}) || missing != 2 {
		t.Errorf("%v were written, %d said to be missing", written, missing)
	}
}
