package admin

import (
	"math"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
)

func TestTheLastAreRemembered(t *testing.T) {
	var r ring[int]
	if got := r.list(); got == nil || len(got) != 0 {
		t.Error(got)
	}
	for i := range 25 {
		r.put(i, 10)
	}
	if got := r.list(); !slices.Equal(got, []int{15, 16, 17, 18, 19, 20, 21, 22, 23, 24}) {
		t.Error(got)
	}
}

func TestMedian(t *testing.T) {
	var h cache.Histogram
	if median(&h) != -1 {
		t.Error("of nothing")
	}
	for _, ms := range []int64{1, 1000, 20_000, 20_000, 30_000} {
		h.Observe(ms * 1e6)
	}
	if got := float64(median(&h)); math.Abs(got/20_000-1) > 0.19 { // a bucket's width
		t.Error(got)
	}
}
