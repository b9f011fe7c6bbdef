package upstream

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// FenceClock keeps the fence bases of a store rising when its server gives way to one whose clock is
// behind and which has not heard of the last bases. It remembers how far the server's bases and clock
// were ahead of the boot clock. Its floor is where the old server's clock would be now.
//
// A base, or the server's clock, counts from the receipt of the answer. So the floor is never ahead of
// the old server's clock: daemons that see each other's bases do not drive each other on, and bases that
// rise by the server's clock alone still do. It is behind that clock by the time that the fastest answer
// took. A daemon is sure to give a larger base if it asks that much later than the old server gave its
// last one. The methods are safe for concurrent use and do not block.
type FenceClock struct {
	now  Clock
	lead atomic.Int64 // the most that a base was ahead of the boot clock, in µs; 0 when none was seen
}

var started = time.Now()

// NewFenceClock returns a FenceClock on the boot clock. A nil clock is the process's monotonic clock,
// which stops while the machine is suspended: for tests.
func NewFenceClock(boot Clock) *FenceClock {
	if boot == nil {
		boot = func() int64 { return int64(time.Since(started)) }
	}
	return &FenceClock{now: boot}
}

// maxFloor leaves room for the bases of one batch.
const maxFloor = cache.MaxBase - MaxBatch

// maxStep bounds how far a base may be ahead of what has been seen before. One that is further ahead is
// not the server's clock: a fence_epoch has lifted it, and it rises with each lock, not with time.
const maxStep = int64(time.Hour / time.Microsecond)

// Saw notes a fence base, or the server's clock in µs, which has just been received. The clock comes
// first.
func (c *FenceClock) Saw(base uint64) {
	if base > cache.MaxBase {
		return
	}
	lead := int64(base) - c.now()/1000 - 1
	for {
		old := c.lead.Load()
		if lead <= old || old != 0 && lead-old > maxStep || c.lead.CompareAndSwap(old, lead) {
			return
		}
	}
}

// Floor is what new bases have to be above, 0 when nothing has been seen.
func (c *FenceClock) Floor() uint64 {
	lead := c.lead.Load()
	if lead == 0 {
		return 0
	}
	return min(uint64(lead+c.now()/1000), maxFloor)
}

// Leave returns what another process on this machine needs to continue with the same floor.
func (c *FenceClock) Leave() []byte { return strconv.AppendInt(nil, c.lead.Load(), 10) }

// Arrive continues with what another process's Leave returned. Nothing is taken from an empty text.
func (c *FenceClock) Arrive(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	lead, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || lead < 0 || uint64(lead) > cache.MaxBase {
		return fmt.Errorf("read the lead of fence bases: %q is not one", b)
	}
	c.lead.Store(max(lead, c.lead.Load()))
	return nil
}
