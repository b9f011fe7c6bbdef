package client

import "golang.org/x/sys/unix"

// sharedClock is true because the clock belongs to the machine: a daemon on this host may read the
// same clock.
const sharedClock = true

// now reads CLOCK_BOOTTIME, in nanoseconds. Unlike Go's own monotonic clock, it counts the time
// that the machine sleeps.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("client: read CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return ts.Nano()
}
