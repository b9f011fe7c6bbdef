package upstream

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// FenceClock keeps the fence bases of a store rising when its server gives way to another one that has
// not heard of the last bases and whose clock is behind.
//
// A server gives bases that are at least its clock in µs, and one more than the base before. So a new
// base has to be above two bounds. The first is the largest base that was seen. The second is where the
// old server's clock would be now: it covers what the old server gave to other hosts. A FenceClock
// computes it from the readings of the last minutes, which its driver has to supply. The bound
// is behind the real clock by the time that the fastest answer took.
//
// A reading that is ahead of all later ones stops counting after fadeTime, or twice that. The floor
// does not fall then, but it stands still until the clock or the bases have caught up. So hosts that
// saw a server's clock jump ahead and back do not carry the bases ahead of it for good. Bases never move the
// second bound: those that a fence_epoch has lifted rise with each lock, not with time.
//
// The methods are safe for concurrent use and do not block.
type FenceClock struct {
	now Clock

	mu      sync.Mutex
	highest uint64 // the largest base seen, or the floor when a reading stopped counting
	// lead is how far the server's clock was ahead of the boot clock at the most, in µs. There is one for
	// the readings since the time began, and one for those of the fadeTime before.
	lead, earlier int64
	began         int64
}

var started = time.Now()

// NewFenceClock returns a FenceClock on the boot clock. A nil clock is the process's monotonic clock,
// which stops while the machine is suspended: for tests.
func NewFenceClock(boot Clock) *FenceClock {
	if boot == nil {
		boot = func() int64 { return int64(time.Since(started)) }
	}
	return &FenceClock{now: boot, lead: none, earlier: none}
}

const (
	readEvery = 10 * time.Second
	fadeTime  = 5 * time.Minute

	// maxFloor leaves room for the bases of one batch.
	maxFloor = cache.MaxBase - MaxBatch

	none = math.MinInt64 // no reading
)

// SawBase notes a fence base that the server gave.
func (c *FenceClock) SawBase(base uint64) {
	if base > cache.MaxBase {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.highest = max(c.highest, base)
}

// SawClock notes a reading of the server's clock, in µs since 1970. It counts from now: the answer has just
// been received.
func (c *FenceClock) SawClock(us int64) {
	if us <= 0 || uint64(us) > cache.MaxBase {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.fade()
	c.lead = max(c.lead, us-now-1)
}

// Due says whether it is time to read a server's clock again, and sets last, the boot clock at the last
// reading of that server. Of several callers it tells one.
func (c *FenceClock) Due(last *atomic.Int64) bool {
	now, was := c.now(), last.Load()
	return (was == 0 || now-was >= int64(readEvery)) && last.CompareAndSwap(was, now)
}

// Floor is what new bases have to be above. It is 0 when nothing has been seen, and never falls.
func (c *FenceClock) Floor() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.floor(c.fade())
}

func (c *FenceClock) floor(now int64) uint64 {
	floor := c.highest
	if lead := max(c.lead, c.earlier); lead != none {
		floor = max(floor, uint64(max(0, lead+now)))
	}
	return min(floor, maxFloor)
}

// fade lets readings of long ago count no more, and returns the boot clock in µs.
func (c *FenceClock) fade() int64 {
	now := c.now() / 1000
	if now-c.began < fadeTime.Microseconds() {
		return now
	}
	c.highest = max(c.highest, c.floor(now))
	c.earlier = c.lead
	if now-c.began >= 2*fadeTime.Microseconds() {
		c.earlier = none
	}
	c.lead, c.began = none, now
	return now
}

// Leave returns what another process on this machine needs to continue with the same floor.
func (c *FenceClock) Leave() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fade()
	return fmt.Appendf(nil, "%d %d", c.highest, max(c.lead, c.earlier))
}

// Arrive continues with what another process's Leave returned. Nothing is taken from an empty text.
func (c *FenceClock) Arrive(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	var highest uint64
	var lead int64
	if n, err := fmt.Sscanf(string(b)+"\n", "%d %d\n", &highest, &lead); n != 2 || err != nil || max(highest, uint64(max(0, lead))) > cache.MaxBase {
		return fmt.Errorf("read the floor of fence bases: %q is not one", b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fade()
	c.highest, c.lead = max(c.highest, highest), max(c.lead, lead)
	return nil
}
