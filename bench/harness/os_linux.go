package harness

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the CPU time of all threads of a process, with a resolution of a nanosecond. It
// returns 0 if there is no such process, and for pid 0.
func CPU(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	var ts unix.Timespec
	// The number is the CPU clock of another process, as clock_getcpuclockid(3) computes it.
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// tied makes a child end with this process, even if this process is killed.
func tied() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
