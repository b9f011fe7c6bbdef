//go:build !linux

package run

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttr puts the child into a group of its own. If this process is killed, the child survives.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopGroup stops the other processes of this process's group, and then this process. Here this
// process is stopped even if no shell can continue it, and it does not notice sig any more.
func stopGroup(sig syscall.Signal) {
	signal.Ignore(sig)
	_ = syscall.Kill(0, sig)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
}

const (
	getModes = unix.TIOCGETA
	setModes = unix.TIOCSETAW
)

// groupRuns reports whether the group has a process. Dead processes that were not reaped count,
// too.
func groupRuns(pgid int) bool { return syscall.Kill(-pgid, 0) != syscall.ESRCH }
