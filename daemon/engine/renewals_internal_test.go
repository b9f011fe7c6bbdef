package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// What is due and cannot be sent yet stays in the schedule, and keeps no other store's leases.
func TestRenewalsAreTakenFromTheScheduleAsTheirLaneHasRoom(t *testing.T) {
	const ttl, many, few = 30 * time.Second, 3 * maxWakes, 5
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
	waiting := func(sl *StoreLane) int { n, _ := sl.renewals.Depth(); return n }
	b.e.Tick()
	if waiting(slow) != maxWakes || waiting(other) != few {
		t.Fatalf("%d and %d wait, want %d and %d", waiting(slow), waiting(other), maxWakes, few)
	}
	b.answer() // the other store's
	at := b.e.Tick()
	if n := waiting(slow); n != maxWakes || at <= b.now.Load() {
		t.Fatalf("%d wait where there is no room, and the next tick is due in %v", n,
			time.Duration(at-b.now.Load()))
	}

	renewed := 0
	for renewed < many {
		woken = cache.Forever
		n := b.exchange(slow.renewals)
		if n == 0 {
			t.Fatalf("nothing waits after %d of %d", renewed, many)
		}
		renewed += n
		if room := !slow.renewals.Full(); room && renewed < many-maxWakes && woken > b.now.Load() {
			t.Fatalf("after %d there is room, and nobody takes more", renewed)
		}
		b.e.Tick()
	}
	if n := slow.schedule.Len(); n != many || slow.schedule.Next() <= b.now.Load() {
		t.Errorf("%d of %d leases are scheduled for later", n, many)
	}
}
