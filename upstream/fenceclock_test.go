package upstream_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// A server's clock that is ahead for a while does not take the floor along for longer than itself, and
// what comes back as a base does not move the floor: it never runs ahead of the boot clock's pace.
func TestFenceClockDoesNotRunAway(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	now := int64(time.Hour)
	boot := func() int64 { return now }
	hosts := []*upstream.FenceClock{upstream.NewFenceClock(boot), upstream.NewFenceClock(boot), upstream.NewFenceClock(boot)}
	const offset = 1_800_000_000_000_000
	counter := uint64(0)
	for range 100_000 {
		h := hosts[rnd.IntN(len(hosts))]
		floor := h.Floor()
		now += rnd.Int64N(int64(5 * time.Millisecond)) // to the server, at any speed
		counter = max(counter+1, floor+1, uint64(offset+now/1000))
		base := counter
		if rnd.IntN(2) == 0 { // another host's call is served meanwhile
			counter = max(counter+1, hosts[rnd.IntN(len(hosts))].Floor()+1)
		}
		now += int64(50*time.Microsecond) + rnd.Int64N(int64(5*time.Millisecond))
		h.Saw(base)
		if lead := int64(h.Floor()) - offset - now/1000; lead > 0 {
			t.Fatalf("the floor is %d µs ahead of the server's clock", lead)
		}
	}
}

func TestFenceClockFollowsTheOldServersClock(t *testing.T) {
	now := int64(time.Hour)
	c := upstream.NewFenceClock(func() int64 { return now })
	if f := c.Floor(); f != 0 {
		t.Errorf("floor %d before any base", f)
	}
	c.Saw(1_800_000_000_000_000)
	now += int64(time.Minute)
	if f := c.Floor(); f < 1_800_000_059_999_990 || f > 1_800_000_060_000_000 {
		t.Errorf("a minute later the floor is %d", f)
	}
	c.Saw(1_700_000_000_000_000) // a server whose clock is behind
	c.Saw(1 << 60)               // no base
	if f := c.Floor(); f < 1_800_000_059_999_990 || f > 1_800_000_060_000_000 {
		t.Errorf("the floor is %d", f)
	}

	next := upstream.NewFenceClock(func() int64 { return now })
	if err := next.Arrive(c.Leave()); err != nil || next.Floor() != c.Floor() {
		t.Errorf("the successor's floor is %d, not %d (%v)", next.Floor(), c.Floor(), err)
	}
	for _, bad := range []string{"x", "-1", "9999999999999999999"} {
		if err := next.Arrive([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	// A base that a fence_epoch has lifted is no clock: it rises with each lock.
	c.Saw(4_000_000_000_000_000)
	if f := c.Floor(); f > 1_800_000_060_000_000 {
		t.Errorf("the floor follows a lifted base to %d", f)
	}

	last := upstream.NewFenceClock(func() int64 { return now })
	last.Saw(cache.MaxBase)
	if now += int64(time.Hour); last.Floor() >= cache.MaxBase-upstream.MaxBatch+1 {
		t.Errorf("floor %d leaves no room for a batch", last.Floor())
	}
}
