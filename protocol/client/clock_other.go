//go:build !linux

package client

import "time"

// sharedClock is false because the clock starts with this process.
const sharedClock = false

var start = time.Now()

// now reads Go's monotonic clock, in nanoseconds. On some systems that clock stops while the
// machine sleeps; a hold may then seem valid for longer than it is.
func now() int64 { return int64(time.Since(start)) }
