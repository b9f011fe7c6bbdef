package daemon

import (
	"testing"
	"time"
)

// A tenth of a second's worth comes at once, the rest as fast as it may; idleness saves no more up.
func TestPace(t *testing.T) {
	var p pace
	now := int64(time.Hour)
	if p.spend(1e6, now) != 0 {
		t.Fatal("without a bound there is something to wait for")
	}
	p.rate.Store(1000)
	for _, s := range []struct {
		after time.Duration
		work  int
		wait  time.Duration
	}{
		{0, 100, 0}, {0, 1, time.Millisecond}, {0, 9, 10 * time.Millisecond},
		{10 * time.Millisecond, 0, 0}, {time.Hour, 150, 50 * time.Millisecond}, {60 * time.Millisecond, 5, 0},
	} {
		now += int64(s.after)
		if got := p.spend(s.work, now); got != s.wait {
			t.Errorf("%v later %d more: %v to wait, not %v", s.after, s.work, got, s.wait)
		}
	}
}

// Who goes and comes again has not been forgotten.
func TestPaceIsKeptForWhoGoes(t *testing.T) {
	hasty, us, now := &userUse{conns: 1}, users{2: {conns: 1}, 3: {conns: 1}}, int64(time.Hour)
	us[1] = hasty
	hasty.pace.rate.Store(10)
	if hasty.pace.spend(1, now) != 0 { // no more than may come at once
		t.Fatal("it has to wait")
	}
	us.leave(1, now)
	us.leave(2, now+paceAhead/2)
	if us[1] != hasty || us[2] != nil {
		t.Errorf("%v", us)
	}
	if us.leave(3, now+int64(time.Minute)); len(us) != 0 {
		t.Errorf("%v", us)
	}
}
