package client

import (
	"math"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// maxBracket bounds, in milliseconds, the duration of a hello that may show that both clocks are
// the same. Two different clocks could agree by chance within a longer one.
const maxBracket = 100

// clockMap converts times of the daemon's clock into times of ours.
type clockMap struct{ offset int64 } // nanoseconds to add

// mapClock compares the clocks by one exchange: the daemon read daemonNow (milliseconds, rounded
// down) at some moment between t0 and t1 of our clock. If daemonNow lies between t0 and t1, both
// are the same clock. Otherwise the daemon is assumed to have read its clock at t0, so that an
// error can only shorten a validity.
func mapClock(t0 int64, daemonNow uint64, t1 int64) clockMap {
	const ms = int64(time.Millisecond)
	d, m0, m1 := clampMillis(daemonNow)/ms, t0/ms, t1/ms
	if sharedClock && m1-m0 <= maxBracket && m0 <= d && d <= m1 {
		return clockMap{}
	}
	return clockMap{(m0 - d - 1) * ms} // the daemon rounded now down, by up to 1 ms
}

// local converts milliseconds of the daemon's clock into nanoseconds of ours.
func (m clockMap) local(ms uint64) int64 {
	t := clampMillis(ms)
	if m.offset > 0 && t > math.MaxInt64-m.offset {
		return math.MaxInt64
	}
	return t + m.offset
}

func clampMillis(ms uint64) int64 {
	return int64(min(ms, uint64(math.MaxInt64/int64(time.Millisecond)))) * int64(time.Millisecond)
}

// millis returns d in milliseconds for the wire, rounded up so that a short time does not become 0.
// A negative d becomes a value that is out of range, so that the daemon refuses it.
func millis(d time.Duration) uint64 {
	if d < 0 {
		return math.MaxInt64
	}
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}

// waitMillis is millis for a wait. A negative d is a wait without bound.
func waitMillis(d time.Duration) int64 {
	if d < 0 {
		return protocol.WaitAlways
	}
	return int64(min(millis(d), protocol.MaxWait))
}
