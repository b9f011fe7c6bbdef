package client

import "golang.org/x/sys/unix"

// sharedClock says that this clock is the machine's, so that a daemon beside us
// may read the very same one.
const sharedClock = true

// now reads CLOCK_BOOTTIME, in nanoseconds: it counts the time that the machine
// sleeps, which Go's own monotonic clock does not.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("client: read CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return ts.Nano()
}
