package daemon

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// What was read before a reload counts only against the limit that applied then, however late it is
// charged.
func TestChargeAfterAReload(t *testing.T) {
	now := int64(time.Hour)
	read := func(l *engine.RateLimit) *turn { return &turn{uncharged: 500, limit: l} }
	slow, fast := engine.NewRateLimit(5), engine.NewRateLimit(1000)
	unlimited := read(nil)
	if _, wait := unlimited.charge(slow, now); wait != 0 || unlimited.uncharged != 0 {
		t.Errorf("read without a limit: %v to wait", wait)
	}
	if _, wait := read(slow).charge(slow, now); wait < 99*time.Second {
		t.Errorf("read with a limit: %v to wait", wait)
	}
	if _, wait := read(slow).charge(slow, now); wait < 199*time.Second {
		t.Errorf("the limit forgets what was asked: %v to wait", wait)
	}
	if _, wait := read(slow).charge(fast, now); wait != 0 {
		t.Errorf("read with a lower limit: %v to wait", wait)
	}
	if _, wait := read(fast).charge(fast, now); wait != 400*time.Millisecond {
		t.Errorf("after a lower limit: %v to wait", wait)
	}
	if _, wait := (&turn{limit: fast}).charge(fast, now); wait != 0 {
		t.Errorf("a part of a frame: %v to wait", wait)
	}
}
