package admin

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/engine/enginetest"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
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

func TestHistoryIsTaken(t *testing.T) {
	e := enginetest.New(t, renewer.Boottime, upstream.Info{}, 0)
	d := &Viewer{Engine: e.Engine}
	last := d.point(nil)
	if n := len(d.history.series()); n != 0 {
		t.Fatalf("%d points of no time", n)
	}
	e.Lock(t, e.Greet(engine.Unknown, "test", ""), 10)
	last.at = last.at.Add(-5 * time.Second) // as if that were so long ago
	d.point(d.point(last))
	h := d.history.series()
	if len(h) != 2 || h[0].Held != 10 || h[0].Sessions != 1 || h[0].Acquires <= 0 ||
		h[0].Acquires > 2 || h[0].Lost != 0 || h[0].Slack != -1 || h[1].Acquires != 0 {
		t.Errorf("%+v", h)
	}
}
