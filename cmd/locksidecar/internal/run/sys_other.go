//go:build !linux

package run

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttr puts the child into a group of its own. Nothing here kills it when we
// are killed.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopGroup stops the others of our process group, and then us. Here we are
// stopped even if no shell can continue us, and sig is not heard of again.
func stopGroup(sig syscall.Signal) {
	signal.Ignore(sig)
	_ = syscall.Kill(0, sig)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
}

const (
	getModes = unix.TIOCGETA
	setModes = unix.TIOCSETAW
)

// groupRuns says whether there is a process in the group, be it dead and not
// reaped.
func groupRuns(pgid int) bool { return syscall.Kill(-pgid, 0) != syscall.ESRCH }
