package upstream_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const year2027 = 1_800_000_000_000_000 // µs

// Hosts that see each other's bases do not raise them above the server's clock.
func TestFenceClockDoesNotRunAway(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	now := int64(time.Hour)
	boot := func() int64 { return now }
	hosts := []*upstream.FenceClock{upstream.NewFenceClock(boot), upstream.NewFenceClock(boot),
		upstream.NewFenceClock(boot)}
	clock := func() int64 { return year2027 + now/1000 }
	counter := uint64(0)
	for range 100_000 {
		h := hosts[rnd.IntN(len(hosts))]
		floor := h.Floor()
		now += rnd.Int64N(int64(5 * time.Millisecond)) // to the server, at any speed
		counter = max(counter+1, floor+1, uint64(clock()))
		base, read := counter, clock()
		if rnd.IntN(2) == 0 { // another host's call is served meanwhile
			counter = max(counter+1, hosts[rnd.IntN(len(hosts))].Floor()+1)
		}
		now += int64(50*time.Microsecond) + rnd.Int64N(int64(5*time.Millisecond))
		h.SawBase(base)
		h.SawClock(read)
		if lead := int64(h.Floor()) - clock(); lead > 0 {
			t.Fatalf("the floor is %d µs ahead of the server's clock", lead)
		}
	}
}

// want checks that the floor is at most 10 µs below f.
func want(t *testing.T, c *upstream.FenceClock, f uint64) {
	t.Helper()
	if got := c.Floor(); got > f || got < f-10 {
		t.Errorf("the floor is %d, not %d", got, f)
	}
}

func TestFenceClockFollowsTheOldServersClock(t *testing.T) {
	now := int64(time.Hour)
	boot := func() int64 { return now }
	c := upstream.NewFenceClock(boot)
	if f := c.Floor(); f != 0 {
		t.Errorf("floor %d before anything was seen", f)
	}
	c.SawClock(year2027)
	now += int64(time.Minute)
	want(t, c, year2027+60_000_000)
	c.SawClock(year2027 - 1_000_000_000) // a server whose clock is behind
	c.SawClock(1 << 60)                  // not a clock
	c.SawClock(-1)
	c.SawBase(1 << 60) // not a base
	want(t, c, year2027+60_000_000)

	next := upstream.NewFenceClock(boot)
	if err := next.Arrive(c.Leave()); err != nil || next.Floor() != c.Floor() {
		t.Errorf("the successor's floor is %d, not %d (%v)", next.Floor(), c.Floor(), err)
	}
	if err := next.Arrive(upstream.NewFenceClock(boot).Leave()); err != nil ||
		next.Floor() != c.Floor() {
		t.Errorf("the floor is %d, not %d, after one that has seen nothing (%v)", next.Floor(),
			c.Floor(), err)
	}
	for _, bad := range []string{"x", "5", "-1 5", "1 2 3", "9999999999999999999 1",
		"1 9999999999999999"} {
		if err := next.Arrive([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}

	last := upstream.NewFenceClock(boot)
	last.SawBase(cache.MaxBase)
	last.SawClock(int64(cache.MaxBase))
	if now += int64(time.Hour); last.Floor() >= cache.MaxBase-upstream.MaxBatch+1 {
		t.Errorf("floor %d leaves no room for a batch", last.Floor())
	}
}

// A clock that was ahead for a while raises the floor for a few more minutes. The floor does not
// fall afterwards.
func TestFenceClockForgetsAClockThatWasAhead(t *testing.T) {
	now := int64(time.Hour)
	c := upstream.NewFenceClock(func() int64 { return now })
	clock := func() uint64 { return uint64(year2027 + now/1000) }
	const hour = 3_600_000_000
	c.SawClock(int64(clock() + hour))
	last := uint64(0)
	for range 20 {
		now += int64(30 * time.Second)
		c.SawClock(int64(clock()))
		if f := c.Floor(); f < last {
			t.Fatalf("the floor falls from %d to %d", last, f)
		} else {
			last = f
		}
	}
	now += int64(30 * time.Second)
	c.SawClock(int64(clock()))
	if f := c.Floor(); f != last {
		t.Errorf("the floor still follows a clock that was ahead ten minutes ago: from %d to %d", last, f)
	}
	now += int64(2 * time.Hour)
	c.SawClock(int64(clock()))
	want(t, c, clock())
}

// The floor is above the bases that other hosts got, even on a host that was idle meanwhile.
func TestFenceClockOfAnIdleHost(t *testing.T) {
	now := int64(time.Hour)
	c := upstream.NewFenceClock(func() int64 { return now })
	c.SawClock(year2027)
	now += int64(24 * time.Hour)
	c.SawClock(year2027) // the new server's
	want(t, c, year2027+24*3_600_000_000)
}

// A base that a fence_epoch has lifted is no clock: it rises with each lock.
func TestFenceClockDoesNotFollowLiftedBases(t *testing.T) {
	now := int64(time.Hour)
	c := upstream.NewFenceClock(func() int64 { return now })
	c.SawClock(year2027)
	for _, ahead := range []uint64{1_000_000, 2 * year2027} {
		base := uint64(year2027) + uint64(now/1000) + ahead
		c.SawBase(base)
		now += int64(time.Millisecond)
		if f := c.Floor(); f != base {
			t.Errorf("the floor after base %d is %d", base, f)
		}
	}
}

func TestFenceClockSaysWhenToReadTheClock(t *testing.T) {
	now := int64(time.Hour)
	c := upstream.NewFenceClock(func() int64 { return now })
	var a, b atomic.Int64
	for _, want := range []bool{true, false} {
		if c.Due(&a) != want || c.Due(&b) != want {
			t.Errorf("Due is not %v", want)
		}
	}
	if now += int64(time.Minute); !c.Due(&a) || c.Due(&a) {
		t.Error("a minute later, Due is not true exactly once")
	}
}
