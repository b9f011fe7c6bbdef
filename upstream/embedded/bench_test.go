package embedded_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

func million(t testing.TB) ([]string, *embedded.Store) {
	s, err := embedded.Open(embedded.Options{Clock: clock, Session: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	keys := make([]string, 1_000_000)
	for i := range keys {
		keys[i] = "key:" + strconv.Itoa(i)
	}
	var res cache.Result
	op := []upstream.Op{{Kind: cache.OpTry, Key: "first", Token: 1}}
	_ = s.Apply(t.Context(), op, []upstream.Result{res})
	return keys, s
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestAMillionLocksCostSixtyBytesEachAtMost(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector's memory is not the program's")
	}
	keys, s := million(t)
	before := heap()
	for i, k := range keys {
		var res cache.Result
		if !s.ApplyInline(&upstream.Op{Kind: cache.OpTry, Key: k, Token: uint64(i)}, &res) ||
			res.Status != cache.Granted {
			t.Fatal(res)
		}
	}
	each := float64(heap()-before) / float64(len(keys))
	runtime.KeepAlive(keys)
	t.Logf("%.1f bytes a lock, beside its key", each)
	if each > 60 {
		t.Errorf("%.1f bytes a lock", each)
	}
}

// BenchmarkPair measures the store's part of an acquire and a release.
func BenchmarkPair(b *testing.B) {
	keys, s := million(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		var res cache.Result
		op := upstream.Op{Kind: cache.OpTry, Key: keys[i%len(keys)], Token: uint64(i)}
		if !s.ApplyInline(&op, &res) || res.Status != cache.Granted {
			b.Fatal(res)
		}
		op.Kind = cache.OpRelease
		if !s.ApplyInline(&op, &res) || res.Status != cache.Done {
			b.Fatal(res)
		}
	}
}
