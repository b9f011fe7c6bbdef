package cache

import (
	"math"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file has the statistics. Each table counts its own events, under the mutex of its shard, so
// counting is a plain addition.

// Outcome says how an acquire ended: a Code, or one of the outcomes below.
type Outcome uint8

// The outcomes that have no code.
const (
	OutReentered Outcome = 32 + iota // granted to an owner that had a hold already
	OutGone                          // its session ended while it waited
	outcomes
)

// Cause says why a hold ended without being lost.
type Cause uint8

// The causes.
const (
	CauseRelease   Cause = iota // its owner released it
	CauseSession                // its session ended
	CauseGivenBack              // its multi-acquire could not get all its keys
	// CauseFixedEnd means that the hold reached its own end; its owner gets protocol.LostFixed.
	CauseFixedEnd
	causes
)

// Stats are the statistics of the locks of one class.
type Stats struct {
	Acquires  [outcomes]uint64
	Contended uint64 // acquires, except tries, that waited for another holder or waiter
	Handoffs  uint64 // grants without a request to the store: this host had the lease
	Lingered  uint64 // the part of Handoffs by leases that had no hold
	Degraded  uint64 // grants by this host alone
	Releases  [causes]uint64
	Lost      [lostReasons]uint64
	// FoundGone counts holds that were released when the store no longer knew the lease. Both Lost
	// and Releases count them.
	FoundGone uint64
	Wait      Histogram // how long granted acquires waited, except re-entries
	Hold      Histogram // how long holds lasted

	Holds, Waiters int64 // now
}

const lostReasons = protocol.LostSilent + 1

// StoreStats are the statistics of one table's use of one store.
type StoreStats struct {
	Renewed, NotHeld, Unanswered uint64 // renewals
	// Slack is the time that a lease had left when its renewal was answered.
	Slack   Histogram
	Expired uint64 // leases that reached their deadline
	Held    int64  // leases now; AddStats fills it in
	// Moved counts the leases, held or not, whose keys are at another store now. AddStats fills it
	// in.
	Moved int64
}

// Add adds o to s.
func (s *Stats) Add(o *Stats) {
	for i, n := range o.Acquires {
		s.Acquires[i] += n
	}
	for i, n := range o.Releases {
		s.Releases[i] += n
	}
	for i, n := range o.Lost {
		s.Lost[i] += n
	}
	s.FoundGone += o.FoundGone
	s.Contended += o.Contended
	s.Handoffs += o.Handoffs
	s.Lingered += o.Lingered
	s.Degraded += o.Degraded
	s.Wait.Add(&o.Wait)
	s.Hold.Add(&o.Hold)
	s.Holds += o.Holds
	s.Waiters += o.Waiters
}

// Unaccounted returns the number of grants that are neither held nor have ended. It is 0 unless
// there is a bug.
func (s *Stats) Unaccounted() int {
	n := int64(s.Acquires[protocol.OK]) - s.Holds + int64(s.FoundGone)
	for _, m := range s.Releases {
		n -= int64(m)
	}
	for _, m := range s.Lost {
		n -= int64(m)
	}
	return int(n)
}

// Add adds o to s.
func (s *StoreStats) Add(o *StoreStats) {
	s.Renewed += o.Renewed
	s.NotHeld += o.NotHeld
	s.Unanswered += o.Unanswered
	s.Slack.Add(&o.Slack)
	s.Expired += o.Expired
	s.Held += o.Held
	s.Moved += o.Moved
}

// Buckets of histograms: four for each doubling, as in Prometheus' native histograms of schema
// 2. Bucket i ends, inclusively, at 2^((HistFirst+i)/4) seconds.
const (
	HistSchema = 2
	HistFirst  = -79 // a duration of up to 2^-20 s counts as zero
	// The last of HistBuckets ends at 2^17 s, and also counts all longer durations.
	HistBuckets = 17*4 - HistFirst + 1
)

// Histogram counts durations.
type Histogram struct {
	Sum     int64 // nanoseconds
	Zero    uint64
	Buckets [HistBuckets]uint64
}

// Observe counts d, in nanoseconds.
func (h *Histogram) Observe(d int64) {
	h.Sum += max(d, 0)
	i := bucketOf(d)
	if i < HistFirst {
		h.Zero++
		return
	}
	h.Buckets[min(i, HistFirst+HistBuckets-1)-HistFirst]++
}

// bucketOf returns the smallest i for which d is at most 2^(i/4) seconds.
func bucketOf(d int64) int {
	if d <= int64(time.Second>>20) {
		return HistFirst - 1
	}
	frac, exp := math.Frexp(float64(d) / float64(time.Second)) // d = frac · 2^exp, frac from ½ to 1
	i := (exp - 1) * 4
	for _, end := range [...]float64{0.5, 0.5946035575013605, 0.7071067811865476,
		0.8408964152537145} {
		if frac <= end {
			break
		}
		i++
	}
	return i
}

// Add adds o to h.
func (h *Histogram) Add(o *Histogram) {
	h.Sum += o.Sum
	h.Zero += o.Zero
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}

// Count returns the number of observed durations.
func (h *Histogram) Count() uint64 {
	n := h.Zero
	for _, m := range h.Buckets {
		n += m
	}
	return n
}

// statsOf returns the statistics of the class of ns.
func (t *Table) statsOf(ns *Namespace) *Stats {
	for int(ns.Class) >= len(t.stats) {
		t.stats = append(t.stats, new(Stats))
	}
	return t.stats[ns.Class]
}

// AddStats adds the statistics of this table to those given, by class and by store. Both slices
// grow as needed.
func (t *Table) AddStats(classes []Stats, stores []StoreStats) ([]Stats, []StoreStats) {
	for i, s := range t.stats {
		if i == len(classes) {
			classes = append(classes, Stats{})
		}
		classes[i].Add(s)
	}
	for i, st := range t.stores {
		if i == len(stores) {
			stores = append(stores, StoreStats{})
		}
		if st != nil {
			stores[i].Add(&st.stats)
			stores[i].Held += int64(st.held)
			stores[i].Moved += int64(st.moved)
		}
	}
	return classes, stores
}

// OldestSince returns when the oldest hold of the table was granted; 0 without any.
func (t *Table) OldestSince() int64 {
	if t.holds.first == nil {
		return 0
	}
	return t.holds.first.since
}
