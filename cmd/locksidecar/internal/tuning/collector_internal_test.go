package tuning

import (
	"math"
	"runtime/debug"
	"testing"
)

// While a takeover holds the collector off, nothing starts it. Values that are set meanwhile apply
// afterwards.
func TestCollectorIsHeldOff(t *testing.T) {
	const limit = 1 << 40
	is := func(when string, percent int, limit int64) {
		t.Helper()
		l := debug.SetMemoryLimit(-1)
		p := debug.SetGCPercent(percent)
		if p != percent || l != limit {
			t.Errorf("%s: %d percent and a limit of %d", when, p, l)
		}
	}
	defer func() {
		setCollector(100, math.MaxInt64)
		collector.limit = 0 // as at the start, when the limit is the user's
	}()
	debug.SetMemoryLimit(limit) // the limit of the user
	holdCollector()
	is("held", -1, limit)
	letCollector()
	is("let go", 100, limit)
	setCollector(-1, limit)
	holdCollector()
	holdCollector()
	is("held with a limit of ours", -1, math.MaxInt64)
	setCollector(-1, 2*limit)
	is("set meanwhile", -1, math.MaxInt64)
	letCollector()
	is("half let go", -1, math.MaxInt64)
	letCollector()
	is("all let go", -1, 2*limit)
	setCollector(100, math.MaxInt64)
	is("small again", 100, math.MaxInt64)
}
