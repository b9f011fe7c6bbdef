package harness

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the CPU time that a process has used, all its threads, to the
// nanosecond; 0 when there is no such process, and for pid 0.
func CPU(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	var ts unix.Timespec
	// What clock_getcpuclockid(3) computes: the CPU clock of another process.
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// tied makes a child end with this process, whatever ends it.
func tied() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
