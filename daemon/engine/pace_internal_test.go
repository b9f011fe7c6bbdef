package engine

import (
	"testing"
	"time"
)

// A tenth of a second's worth of work is not delayed, and the rest comes at the rate. Idle time
// saves up no more than that.
func TestPace(t *testing.T) {
	var p pace
	now := int64(time.Hour)
	reads := func(work int) time.Duration {
		return p.limit.Load().Charge(work, work <= 1, now)
	}
	p.set(1000)
	for _, s := range []struct {
		after time.Duration
		work  int
		wait  time.Duration
	}{
		{0, 100, 0}, {0, 1, time.Millisecond}, {0, 9, 10 * time.Millisecond},
		{10 * time.Millisecond, 0, 0}, {time.Hour, 150, 50 * time.Millisecond},
		{60 * time.Millisecond, 5, 0},
		{time.Hour, 5100, 5 * time.Second}, {0, 1, paceMaxWait}, {0, 2, 5002 * time.Millisecond},
	} {
		now += int64(s.after)
		if got := reads(s.work); got != s.wait {
			t.Errorf("%v later %d more: %v to wait, not %v", s.after, s.work, got, s.wait)
		}
	}
}

// A connection checks the limit again after a twentieth of a second's worth of work, and after each
// request while its user is over the limit.
func TestQuotaOfAPace(t *testing.T) {
	now := int64(time.Hour)
	for rate, want := range map[int64]int{1: 1, 39: 1, 200: 10, 1 << 30: maxQuota} {
		l := &RateLimit{rate: rate}
		if n := l.Quota(now); n != want {
			t.Errorf("%d a second: %d requests at once, want %d", rate, n, want)
		}
		l.due.Store(now + 1)
		if n := l.Quota(now); n != 1 {
			t.Errorf("%d a second, and too fast: %d requests at once", rate, n)
		}
	}
}

// A change of the limit starts from zero. A reload without a change does not.
func TestALimitIsKeptUnlessItChanges(t *testing.T) {
	var p pace
	p.set(5)
	l := p.limit.Load()
	if p.set(5); p.limit.Load() != l {
		t.Error("a reload without a change forgets what was asked")
	}
	if p.set(1000); p.limit.Load() == l {
		t.Error("another rate does not start from zero")
	}
	if p.set(0); p.limit.Load() != nil {
		t.Error("there still is a limit")
	}
}

// A user who disconnects and connects again has no new allowance.
func TestPaceIsKeptAfterADisconnect(t *testing.T) {
	hasty, us, now := &userUse{conns: 1}, users{2: {conns: 1}, 3: {conns: 1}}, int64(time.Hour)
	us[1] = hasty
	hasty.pace.set(10)
	if hasty.pace.limit.Load().Charge(1, true, now) != 0 { // no more than may come at once
		t.Fatal("it has to wait")
	}
	us.leave(1, now)
	us.leave(2, now+paceBurst/2)
	if us[1] != hasty || us[2] != nil {
		t.Errorf("%v", us)
	}
	if us.leave(3, now+int64(time.Minute)); len(us) != 0 {
		t.Errorf("%v", us)
	}
}
