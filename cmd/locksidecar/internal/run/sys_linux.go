package run

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childAttr puts the child into a group of its own, and lets the kernel kill it when this process
// ends.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// sigaction is the struct of the kernel.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     [2]uint64
}

const sigIgn = 1 // SIG_IGN; SIG_DFL is 0

func setAction(sig syscall.Signal, act, old *sigaction) {
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(act)),
		uintptr(unsafe.Pointer(old)), 8, 0, 0)
}

// stopGroup stops the other processes of this process's group, and then this process. It makes the
// system calls itself, because os/signal never restores the default effect of a stop signal that
// was notified or ignored before. It returns when this process runs again. That is at once if the
// kernel does not stop the group.
func stopGroup(sig syscall.Signal) {
	var was sigaction
	setAction(sig, &sigaction{handler: sigIgn}, &was)
	_ = syscall.Kill(0, sig)
	setAction(sig, &sigaction{}, nil)
	// The signal is sent to this very thread, so it has taken effect when the call returns.
	runtime.LockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
	runtime.UnlockOSThread()
	setAction(sig, &was, nil)
}

const (
	getModes = unix.TCGETS
	setModes = unix.TCSETSW // after the output has been written
)

// groupRuns reports whether a process of the group is alive. Dead processes stay in the group
// until they are reaped, and a container's first process may never reap them. So groupRuns
// examines each process.
func groupRuns(pgid int) bool {
	if syscall.Kill(-pgid, 0) == syscall.ESRCH {
		return false
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return true
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return true
	}
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err == nil && runsIn(stat, pgid) {
			return true
		}
	}
	return false
}

// runsIn reads a line of /proc/PID/stat: PID (NAME) STATE PARENT GROUP …
func runsIn(stat []byte, pgid int) bool {
	end := bytes.LastIndexByte(stat, ')') // the name may contain any character
	f := bytes.Fields(stat[end+1:])
	if len(f) < 3 || f[0][0] == 'Z' || f[0][0] == 'X' {
		return false
	}
	n, err := strconv.Atoi(string(f[2]))
	return err == nil && n == pgid
}
