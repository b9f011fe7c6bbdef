package harness

import (
	"encoding/json"
	"math/bits"
	"time"
)

const (
	histBits    = 5 // 32 steps for each power of two: 3% resolution
	histBuckets = 40 << histBits
)

// Hist is a log-linear histogram of durations of up to some hours. Only one goroutine may use it.
// Merge combines the histograms of several goroutines.
type Hist struct {
	count [histBuckets]uint64
	n     uint64
	max   time.Duration
}

func bucketOf(v uint64) int {
	e := max(0, bits.Len64(v)-1-histBits)
	return min(e<<histBits+int(v>>e), histBuckets-1)
}

// highest returns the largest value in bucket b.
func highest(b int) uint64 {
	if b < 2<<histBits {
		return uint64(b)
	}
	e := b>>histBits - 1
	return uint64(b-e<<histBits+1)<<e - 1
}

// Add counts one duration.
func (h *Hist) Add(d time.Duration) {
	h.count[bucketOf(uint64(max(d, 0)))]++
	h.n++
	h.max = max(h.max, d)
}

// N returns the number of counted durations.
func (h *Hist) N() uint64 { return h.n }

// Max returns the longest duration.
func (h *Hist) Max() time.Duration { return h.max }

// Quantile returns the duration that is not exceeded by the share q of all durations.
func (h *Hist) Quantile(q float64) time.Duration {
	want := max(1, uint64(q*float64(h.n)+0.5))
	var seen uint64
	for b, c := range h.count {
		if seen += c; seen >= want && c > 0 {
			return min(time.Duration(highest(b)), h.max)
		}
	}
	return h.max
}

// Merge adds the durations in o.
func (h *Hist) Merge(o *Hist) {
	for b, c := range o.count {
		h.count[b] += c
	}
	h.n += o.n
	h.max = max(h.max, o.max)
}

type histJSON struct {
	Counts map[int]uint64
	Max    time.Duration
}

// MarshalJSON encodes the buckets that are not empty.
func (h *Hist) MarshalJSON() ([]byte, error) {
	j := histJSON{map[int]uint64{}, h.max}
	for b, c := range h.count {
		if c > 0 {
			j.Counts[b] = c
		}
	}
	return json.Marshal(j)
}

// UnmarshalJSON decodes the result of MarshalJSON.
func (h *Hist) UnmarshalJSON(p []byte) error {
	var j histJSON
	if err := json.Unmarshal(p, &j); err != nil {
		return err
	}
	*h = Hist{max: j.Max}
	for b, c := range j.Counts {
		if b >= 0 && b < histBuckets {
			h.count[b] = c
			h.n += c
		}
	}
	return nil
}
