package renewer

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

const second = int64(time.Second)

func track(s *Schedule, l *cache.Lease, until, ttl, now int64) {
	s.Track(&cache.Track{Lease: l, Token: 1, Until: until, TTL: ttl}, 0, now)
}

func TestALeaseIsDueWhenAThirdOfItsTTLHasGone(t *testing.T) {
	s := New(1)
	l := new(cache.Lease)
	track(s, l, 130*second, 30*second, 100*second)
	if at := s.Next(); at > 110*second || at < 109*second {
		t.Fatalf("due at %v", time.Duration(at))
	}
	if due := s.Due(108*second, 10, nil); len(due) != 0 {
		t.Fatal("due too early")
	}
	if late := s.Late(s.Next() + 3*second); late != 3*time.Second || s.Late(s.Next()-1) != 0 ||
		New(1).Late(second) != 0 {
		t.Fatalf("late by %v", late)
	}
	if due := s.Due(110*second, 10, nil); len(due) != 1 || due[0].Lease != l || s.Len() != 0 {
		t.Fatalf("%v", due)
	}
}

func TestRenewalsOfManyLeasesComeDueTogether(t *testing.T) {
	for _, c := range []struct{ ttl, early int64 }{
		{30 * second, second + grain}, {second / 10, second/300 + second/10_000},
	} {
		s := New(1)
		latest := map[*cache.Lease]int64{}
		for i := range int64(10_000) {
			l, now := new(cache.Lease), 100*second+i*c.ttl/100_000 // within a tenth of the TTL
			latest[l] = now + c.ttl - c.ttl*2/3
			track(s, l, now+c.ttl, c.ttl, now)
		}
		first, last, times := s.Next(), int64(0), int64(0)
		for at := s.Next(); at != cache.Forever; at, times = s.Next(), times+1 {
			for _, d := range s.Due(at, len(latest), nil) {
				if late := at - latest[d.Lease]; late > 0 || late < -c.early {
					t.Fatalf("TTL %v: due %v before a third has gone", time.Duration(c.ttl), time.Duration(-late))
				}
			}
			last = at
		}
		if most := (last-first)/min(grain, c.ttl/1000) + 1; times > most {
			t.Errorf("TTL %v: due at %d times, want at most %d", time.Duration(c.ttl), times, most)
		}
	}
}

func TestAFailedRenewalIsTriedAgainSeveralTimesBeforeTheDeadline(t *testing.T) {
	s := New(1)
	l := new(cache.Lease)
	now, until := 100*second, 103*second
	tries := 0
	for now < until {
		s.Track(&cache.Track{Lease: l, Token: 1, Until: until, TTL: 30 * second, Failed: true}, 0, now)
		at := s.Next()
		if at <= now {
			t.Fatal("tried again at once")
		}
		now = at
		if now < until {
			tries++
		}
		s.Due(now, 1, nil)
	}
	if tries < retries {
		t.Fatalf("%d tries in three seconds", tries)
	}
}

func TestAForgottenLeaseIsNeverDue(t *testing.T) {
	s := New(1)
	l := new(cache.Lease)
	track(s, l, 130*second, 30*second, 100*second)
	s.Track(&cache.Track{Lease: l}, 0, 101*second)
	s.Track(&cache.Track{Lease: l}, 0, 101*second)
	if s.Len() != 0 || s.Next() != cache.Forever {
		t.Fatal("still tracked")
	}
}

func TestTheHeapKeepsItsOrderWhateverIsTrackedAndForgotten(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := New(1)
	leases := make([]*cache.Lease, 300)
	for i := range leases {
		leases[i] = new(cache.Lease)
	}
	for range 20000 {
		l := leases[r.IntN(len(leases))]
		if r.IntN(3) == 0 {
			s.Track(&cache.Track{Lease: l}, 0, 0)
		} else {
			track(s, l, int64(r.IntN(1000))*second, second, 0)
		}
	}
	last, n := int64(-1), s.Len()
	for range n {
		at := s.Next()
		due := s.Due(at, 1, nil)
		if len(due) != 1 || at < last {
			t.Fatalf("%d leases due at %d, after %d", len(due), at, last)
		}
		last = at
	}
	if s.Len() != 0 {
		t.Fatal("left over")
	}
}

func TestManyLeasesDoNotComeDueTogether(t *testing.T) {
	s := New(1)
	for range 1000 {
		track(s, new(cache.Lease), 130*second, 30*second, 100*second)
	}
	most := 0
	for now := 109 * second; now < 111*second; now += second / 100 {
		most = max(most, len(s.Due(now, 1000, nil)))
	}
	if s.Len() != 0 || most > 100 {
		t.Fatalf("%d due in one hundredth of a second, %d never", most, s.Len())
	}
}

func TestManyThatAreDueTogetherLeaveRoomInBetween(t *testing.T) {
	const many, most = 1000, 100
	s := New(1)
	for range many {
		track(s, new(cache.Lease), 130*second, 30*second, 100*second)
	}
	now, pieces := 110*second, 0
	for s.Len() > 0 {
		if due := s.Due(now, most, nil); len(due) != most {
			t.Fatalf("%d are due", len(due))
		}
		pieces++
		if s.Len() > 0 {
			if again := s.Due(now, most, nil); len(again) != 0 {
				t.Fatal("more are due at once")
			}
			now = s.Next()
		}
	}
	if took := now - 110*second; pieces != many/most || took != int64(pieces-1)*pace {
		t.Fatalf("%d pieces in %v", pieces, time.Duration(took))
	}
}

func TestNothingThatIsLateWaitsForItsTurn(t *testing.T) {
	s := New(1)
	for range 1000 {
		track(s, new(cache.Lease), 130*second, 30*second, 100*second)
	}
	now := 112 * second // as after a sleep
	for s.Len() > 0 {
		if at := s.Next(); at > now || len(s.Due(now, 100, nil)) != 100 {
			t.Fatalf("due at %v, not at once", time.Duration(at))
		}
	}
}
