package renewer

import (
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// Due is one lease whose renewal is due.
type Due struct {
	Lease *cache.Lease
	Shard int
	Gen   uint64
}

// Schedule holds, for every lease of a store that is kept, when it is renewed next.
type Schedule struct {
	mu   sync.Mutex
	heap []entry // of four children each, by due; guarded by mu, as are the Renewals
	seed uint64
	// With more due than can be had at once there is a pause before the next; guarded by mu.
	paused   int64 // until then
	shortest int64 // TTL since there was nothing
}

// entry has a copy of the lease's Renewal.Due: a million leases are compared without
// a look at each, which would be a miss of the cache.
type entry struct {
	due   int64
	lease *cache.Lease
}

const children = 4

// New makes an empty schedule.
func New(seed uint64) *Schedule { return &Schedule{seed: seed} }

// retries is how often at least a failed renewal is tried again in what is left
// of a lease.
const retries = 8

// retryMin and retryMax bound the pause before a failed renewal is tried again.
const (
	retryMin = int64(20 * time.Millisecond)
	retryMax = int64(time.Second)
)

// pace is the pause after as many due leases as are asked for. It leaves room to others' requests,
// which would wait behind thousands of renewals; those have two thirds of their TTL left, and are
// spread by it. What is late by more than slack of the TTL is not kept.
const (
	pace  = int64(time.Millisecond)
	slack = 30
)

// grain is between two times at which renewals come due, and a thousandth of the TTL where that is less:
// those of many leases go to the store together, at a fraction of what they cost one by one.
const grain = int64(20 * time.Millisecond)

// Track notes what a table says of a lease: renew it in time before tr.Until, or
// forget it. A lease is renewed when a third of its TTL has gone, earlier by up
// to a tenth of that so that many leases do not come due at one time.
func (s *Schedule) Track(tr *cache.Track, shard int, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &tr.Lease.Renewal
	if tr.Until == 0 {
		if r.Index != 0 {
			s.remove(int(r.Index) - 1)
		}
		return
	}
	if s.shortest == 0 || len(s.heap) == 0 {
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
	r.Due, r.Shard, r.Gen = max(due, now), int16(shard), tr.Gen
	if r.Index == 0 {
		s.heap = append(s.heap, entry{})
		s.up(len(s.heap)-1, entry{r.Due, tr.Lease})
		return
	}
	s.fix(int(r.Index)-1, entry{r.Due, tr.Lease})
}

// Restore takes in a lease whose Renewal says when it is due, where a table of this process has
// come to know it from another.
func (s *Schedule) Restore(l *cache.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heap = append(s.heap, entry{})
	s.up(len(s.heap)-1, entry{l.Renewal.Due, l})
}

// Due appends the leases that are due at now, at most most, and forgets them:
// each is tracked again when its renewal has been answered.
func (s *Schedule) Due(now int64, most int, due []Due) []Due {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now < s.paused {
		return due
	}
	for ; len(s.heap) > 0 && s.heap[0].due <= now; most-- {
		if most == 0 {
			if now-s.heap[0].due < s.shortest/slack {
				s.paused = now + pace
			}
			break
		}
		l := s.heap[0].lease
		due = append(due, Due{l, int(l.Renewal.Shard), l.Renewal.Gen})
		s.remove(0)
	}
	return due
}

// Next is when Due has something; cache.Forever when nothing is tracked.
func (s *Schedule) Next() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.heap) == 0 {
		return cache.Forever
	}
	return max(s.heap[0].due, s.paused)
}

// Late is for how long what is due first has been due at now; 0 when nothing is.
func (s *Schedule) Late(now int64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.heap) == 0 {
		return 0
	}
	return time.Duration(max(0, now-s.heap[0].due))
}

// Len is how many leases are tracked.
func (s *Schedule) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.heap)
}

func (s *Schedule) random() uint64 { // splitmix64
	s.seed += 0x9e3779b97f4a7c15
	x := s.seed
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// up puts e at i, or as far above as it has to be.
func (s *Schedule) up(i int, e entry) {
	for i > 0 {
		p := (i - 1) / children
		if s.heap[p].due <= e.due {
			break
		}
		s.set(i, s.heap[p])
		i = p
	}
	s.set(i, e)
}

// down puts e at i, or as far below as it has to be.
func (s *Schedule) down(i int, e entry) {
	for {
		first := children*i + 1
		if first >= len(s.heap) {
			break
		}
		c := first
		for o := first + 1; o < min(first+children, len(s.heap)); o++ {
			if s.heap[o].due < s.heap[c].due {
				c = o
			}
		}
		if e.due <= s.heap[c].due {
			break
		}
		s.set(i, s.heap[c])
		i = c
	}
	s.set(i, e)
}

func (s *Schedule) set(i int, e entry) {
	s.heap[i] = e
	e.lease.Renewal.Index = int32(i + 1)
}

// fix puts e at i, or where it has to be.
func (s *Schedule) fix(i int, e entry) {
	if i > 0 && e.due < s.heap[(i-1)/children].due {
		s.up(i, e)
	} else {
		s.down(i, e)
	}
}

func (s *Schedule) remove(i int) {
	s.heap[i].lease.Renewal.Index = 0
	last := len(s.heap) - 1
	moved := s.heap[last]
	s.heap[last] = entry{}
	s.heap = s.heap[:last]
	if i < last {
		s.fix(i, moved)
	}
}
