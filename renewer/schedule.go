package renewer

import (
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/cache/heap"
)

// Due is one lease whose renewal is due.
type Due struct {
	Lease *cache.Lease
	Shard int
	Token uint64
}

// Schedule knows when each lease at a store is renewed next.
type Schedule struct {
	mu   sync.Mutex
	heap heap.Heap[entry, entryOrder] // guarded by mu, as are the Renewals
	seed uint64
	// paused and shortest are guarded by mu. If more leases are due than one call of Due returns,
	// there is a pause before the next call.
	paused   int64 // the end of the pause
	shortest int64 // the shortest TTL since the heap was last empty
}

// entry has a copy of the lease's Renewal.Due, because comparing a million leases must not cause a
// cache miss for each.
type entry struct {
	due   int64
	lease *cache.Lease
}

// entryOrder orders entries by time, and records their places in the Renewals.
type entryOrder struct{}

func (entryOrder) Less(a, b entry) bool     { return a.due < b.due }
func (entryOrder) Place(e entry, place int) { e.lease.Renewal.Index = int32(place) }

// New returns an empty schedule.
func New(seed uint64) *Schedule { return &Schedule{seed: seed} }

// retries is the minimum number of times that a failed renewal is repeated before the lease ends.
const retries = 8

// retryMin and retryMax bound the pause before a failed renewal is repeated.
const (
	retryMin = int64(20 * time.Millisecond)
	retryMax = int64(time.Second)
)

// pace is the pause after a call of Due that has returned as many leases as were requested.
// Otherwise other requests would wait behind thousands of renewals, which have two thirds of their
// TTL left. There is no pause if a renewal is late by more than the TTL divided by slack.
const (
	pace  = int64(time.Millisecond)
	slack = 30
)

// grain is the time between two moments at which renewals become due; for a short TTL it is a
// thousandth of the TTL. So the renewals of many leases go to the store together, which costs a
// fraction of sending them one by one.
const grain = int64(20 * time.Millisecond)

// Track records that a lease has to be renewed in time before tr.Until, or forgets the lease. A
// lease is renewed when a third of its TTL has passed, or earlier by up to a tenth of that third.
// So leases that were acquired together are not all due at the same time.
func (s *Schedule) Track(tr *cache.Track, shard int, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &tr.Lease.Renewal
	if tr.Until == 0 {
		if r.Index != 0 {
			s.heap.Remove(int(r.Index))
		}
		return
	}
	if s.shortest == 0 || s.heap.Len() == 0 {
		s.shortest = tr.TTL
	}
	s.shortest = min(s.shortest, tr.TTL)
	due := tr.Until - tr.TTL*2/3
	if tr.Failed {
		left := tr.Until - now
		due = now + min(max(left/retries, retryMin), retryMax)
	} else if spread := tr.TTL / 30; spread > 0 {
		due -= int64(s.random() % uint64(spread))
		due -= due % max(1, min(grain, tr.TTL/1000))
	}
	r.Due, r.Shard, r.Token = max(due, now), int16(shard), tr.Token
	if r.Index == 0 {
		s.heap.Push(entry{r.Due, tr.Lease})
	} else {
		s.heap.Set(int(r.Index), entry{r.Due, tr.Lease})
	}
}

// Restore adds a lease that another process has passed on. Its Renewal says when it is due.
func (s *Schedule) Restore(l *cache.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heap.Push(entry{l.Renewal.Due, l})
}

// Due appends up to limit leases that are due at now, and forgets them. Each is tracked again when
// its renewal has been answered.
func (s *Schedule) Due(now int64, limit int, due []Due) []Due {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now < s.paused {
		return due
	}
	for ; s.heap.Len() > 0 && s.heap.At(1).due <= now; limit-- {
		if limit == 0 {
			if now-s.heap.At(1).due < s.shortest/slack {
				s.paused = now + pace
			}
			break
		}
		l := s.heap.Remove(1).lease
		due = append(due, Due{l, int(l.Renewal.Shard), l.Renewal.Token})
	}
	return due
}

// Next returns when Due has to be called next; cache.Forever if no lease is tracked.
func (s *Schedule) Next() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heap.Len() == 0 {
		return cache.Forever
	}
	return max(s.heap.At(1).due, s.paused)
}

// Late returns for how long the most urgent renewal has been due at now; 0 if none is due.
func (s *Schedule) Late(now int64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heap.Len() == 0 {
		return 0
	}
	return time.Duration(max(0, now-s.heap.At(1).due))
}

// Len returns the number of tracked leases.
func (s *Schedule) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heap.Len()
}

func (s *Schedule) random() uint64 { // splitmix64
	s.seed += 0x9e3779b97f4a7c15
	x := s.seed
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
