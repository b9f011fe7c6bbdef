package engine

import (
	"fmt"
	"runtime/debug"
	"testing"
)

// BenchmarkSnapshot writes the snapshot of an engine with many locks, and reads it into another
// one.
func BenchmarkSnapshot(b *testing.B) {
	const sessions, each = 500, 200
	e := testEngine(b)
	for i := range sessions {
		s, k := open(b, e)
		for n := range each {
			lockFor(b, s, k, fmt.Sprint("image/", i, "/", n), 0)
			k.buf = k.buf[:0]
		}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // as during a takeover
	snapshot, _, err := e.Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := e.Snapshot(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(snapshot)), "bytes")
	})
	b.Run("take", func(b *testing.B) {
		for b.Loop() {
			if _, err := testEngine(b).Take(snapshot, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
