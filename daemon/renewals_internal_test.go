package daemon

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// What is due and cannot be sent yet stays in the schedule, and keeps no other store's leases.
func TestRenewalsAreTakenFromTheScheduleAsTheirLaneHasRoom(t *testing.T) {
	const ttl, many, few = 30 * time.Second, 3 * tickMost, 5
	b := newBeating(t)
	slow := b.u
	other, err := b.e.AddStore("other", upstream.Info{Rebase: true, Timeout: time.Second}, nil)
	if err == nil {
		err = b.e.Route([]Namespace{{TTL: ttl}, {Prefix: "o:", Store: "other", TTL: ttl}}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range many {
		b.acquire(fmt.Sprint("k", i), ttl)
	}
	b.u = other
	for i := range few {
		b.acquire(fmt.Sprint("o:", i), ttl)
	}
	if n, m := slow.schedule.Len(), other.schedule.Len(); n != many || m != few {
		t.Fatalf("%d and %d leases are scheduled, want %d and %d", n, m, many, few)
	}
	woken := cache.Forever
	b.e.wake = func(at int64) { woken = min(woken, at) }

	b.now.Add(int64(ttl / 2))
	waiting := func(u *Unit) int { n, _ := u.renewals.Depth(); return n }
	b.e.Tick()
	if waiting(slow) != tickMost || waiting(other) != few {
		t.Fatalf("%d and %d wait, want %d and %d", waiting(slow), waiting(other), tickMost, few)
	}
	b.answer() // the other store's
	at := b.e.Tick()
	if n := waiting(slow); n != tickMost || at <= b.now.Load() {
		t.Fatalf("%d wait where there is no room, and the next tick is due in %v", n, time.Duration(at-b.now.Load()))
	}

	renewed := 0
	for renewed < many {
		woken = cache.Forever
		n := b.exchange(slow.renewals)
		if n == 0 {
			t.Fatalf("nothing waits after %d of %d", renewed, many)
		}
		renewed += n
		if room := !slow.renewals.Full(); room && renewed < many-tickMost && woken > b.now.Load() {
			t.Fatalf("after %d there is room, and nobody takes more", renewed)
		}
		b.e.Tick()
	}
	if n := slow.schedule.Len(); n != many || slow.schedule.Next() <= b.now.Load() {
		t.Errorf("%d of %d leases are scheduled for later", n, many)
	}
}

// A lease that is at another store now is in the schedule of that one alone.
func TestALeaseIsInOneSchedule(t *testing.T) {
	b := newBeating(t)
	other, err := b.e.AddStore("other", upstream.Info{Timeout: time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := new(cache.Lease)
	for _, to := range []*Unit{b.u, other, other, b.u} {
		tr := cache.Track{Lease: l, Gen: 1, Until: b.now.Load() + int64(time.Minute), TTL: int64(time.Minute), Store: to.core.ID}
		b.e.track(&tr, *b.e.units.Load(), 3, b.now.Load(), new(aftermath))
		if n, m := b.u.schedule.Len(), other.schedule.Len(); n+m != 1 || to.schedule.Len() != 1 {
			t.Fatalf("it is %d times in the one and %d times in the other", n, m)
		}
	}
	b.e.track(&cache.Track{Lease: l}, *b.e.units.Load(), 3, b.now.Load(), new(aftermath))
	if n, m := b.u.schedule.Len(), other.schedule.Len(); n+m != 0 {
		t.Errorf("forgotten, it is %d times in the one and %d times in the other", n, m)
	}
}
