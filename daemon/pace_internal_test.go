package daemon

import (
	"testing"
	"time"
)

// A tenth of a second's worth of work is not delayed, and the rest comes at the rate. Idle time saves up no more than that.
func TestPace(t *testing.T) {
	var p pace
	now := int64(time.Hour)
	reads := func(work int) time.Duration {
		_, wait := (&turn{uncharged: work, limit: p.limit.Load()}).charge(&p, now)
		return wait
	}
	if reads(1e6) != 0 {
		t.Fatal("without a bound there is something to wait for")
	}
	p.set(1000)
	for _, s := range []struct {
		after time.Duration
		work  int
		wait  time.Duration
	}{
		{0, 100, 0}, {0, 1, time.Millisecond}, {0, 9, 10 * time.Millisecond},
		{10 * time.Millisecond, 0, 0}, {time.Hour, 150, 50 * time.Millisecond}, {60 * time.Millisecond, 5, 0},
		{time.Hour, 5100, 5 * time.Second}, {0, 1, paceMaxWait}, {0, 2, 5002 * time.Millisecond},
	} {
		now += int64(s.after)
		if got := reads(s.work); got != s.wait {
			t.Errorf("%v later %d more: %v to wait, not %v", s.after, s.work, got, s.wait)
		}
	}
}

// A connection checks the limit again after a twentieth of a second's worth of work, and after each request while its
// user is over the limit.
func TestQuotaOfAPace(t *testing.T) {
	now := int64(time.Hour)
	for rate, want := range map[int64]int{1: 1, 39: 1, 200: 10, 1 << 30: turnWork} {
		l := &rateLimit{rate: rate}
		if n := l.quota(now); n != want {
			t.Errorf("%d a second: %d requests at once, want %d", rate, n, want)
		}
		l.due.Store(now + 1)
		if n := l.quota(now); n != 1 {
			t.Errorf("%d a second, and too fast: %d requests at once", rate, n)
		}
	}
}

// What was read before a reload counts only against the limit that applied then, however late it is charged.
func TestPaceAfterAReload(t *testing.T) {
	var p pace
	now := int64(time.Hour)
	read := func() *turn { return &turn{uncharged: 500, limit: p.limit.Load()} }
	unbounded := read()
	p.set(5)
	if _, wait := unbounded.charge(&p, now); wait != 0 || unbounded.uncharged != 0 {
		t.Errorf("read without a limit: %v to wait", wait)
	}
	if _, wait := read().charge(&p, now); wait != 100*time.Second-time.Duration(paceBurst) {
		t.Errorf("read with a limit: %v to wait", wait)
	}
	slow := read()
	p.set(5)
	if _, wait := slow.charge(&p, now); wait == 0 {
		t.Error("a reload without a change forgets what was asked")
	}
	slow = read()
	p.set(1000)
	if _, wait := slow.charge(&p, now); wait != 0 {
		t.Errorf("read with a lower limit: %v to wait", wait)
	}
	if _, wait := read().charge(&p, now); wait != 400*time.Millisecond {
		t.Errorf("after a lower limit: %v to wait", wait)
	}
}

// A user who disconnects and connects again has no new allowance.
func TestPaceIsKeptAfterADisconnect(t *testing.T) {
	hasty, us, now := &userUse{conns: 1}, users{2: {conns: 1}, 3: {conns: 1}}, int64(time.Hour)
	us[1] = hasty
	hasty.pace.set(10)
	if hasty.pace.limit.Load().charge(1, true, now) != 0 { // no more than may come at once
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
