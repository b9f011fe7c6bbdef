package upstream

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// FenceClock keeps the fence bases of a store rising after a failover to a server that does not
// know the last bases and whose clock is behind.
//
// A server gives bases that are larger than the base before and at least its own clock in µs. So a
// new base must be above two bounds. The first is the largest base that this host has seen. The
// second is the present time on the old server's clock: it covers bases that the old server gave to
// other hosts. A FenceClock computes it from clock readings of the last minutes, which the driver
// supplies. The bound is behind the server's clock by the network delay of the fastest answer.
//
// A reading that is ahead of all later ones expires after one to two fadeTimes. The floor does not
// fall then: it stays constant until the clock or the bases have passed it. So a server's clock
// that jumps ahead and back does not keep the bases of its hosts ahead for good. Bases never raise
// the second bound, because bases that a fence_epoch has raised rise with each lock and not with
// time.
//
// The methods are safe for concurrent use and do not block.
type FenceClock struct {
	now Clock

	mu      sync.Mutex
	highest uint64 // the largest base seen, or the floor when a reading expired
	// lead is the server's clock minus the boot clock, in µs: the maximum of the readings since
	// began. earlier is the maximum of the fadeTime before that.
	lead, earlier int64
	began         int64 // boot clock in µs
}

var started = time.Now()

// NewFenceClock returns a FenceClock on the boot clock. If boot is nil, it uses the process's
// monotonic clock, which stops while the machine is suspended. That is for tests only.
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

// SawBase records a fence base that the server has given.
func (c *FenceClock) SawBase(base uint64) {
	if base > cache.MaxBase {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.highest = max(c.highest, base)
}

// SawClock records a reading of the server's clock, in µs since 1970. Call it as soon as the answer
// has been received: the reading counts from now.
func (c *FenceClock) SawClock(us int64) {
	if us <= 0 || uint64(us) > cache.MaxBase {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.fade()
	c.lead = max(c.lead, us-now-1)
}

// Due reports whether a server's clock should be read again. last is the boot clock at its last
// reading, which Due then sets to now. Of several concurrent callers, one gets true.
func (c *FenceClock) Due(last *atomic.Int64) bool {
	now, was := c.now(), last.Load()
	return (was == 0 || now-was >= int64(readEvery)) && last.CompareAndSwap(was, now)
}

// Floor returns the bound that new bases must be above. It never falls, and is 0 before the first
// base or reading.
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

// fade expires old readings and returns the boot clock in µs.
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

// Leave returns the state with which another process on this machine continues with the same floor.
func (c *FenceClock) Leave() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fade()
	return fmt.Appendf(nil, "%d %d", c.highest, max(c.lead, c.earlier))
}

// Arrive adopts the state that another process's Leave returned. An empty state changes nothing.
func (c *FenceClock) Arrive(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	var highest uint64
	var lead int64
	n, err := fmt.Sscanf(string(b)+"\n", "%d %d\n", &highest, &lead)
	if n != 2 || err != nil || max(highest, uint64(max(0, lead))) > cache.MaxBase {
		return fmt.Errorf("read the floor of fence bases: malformed state %q", b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fade()
	c.highest, c.lead = max(c.highest, highest), max(c.lead, lead)
	return nil
}
