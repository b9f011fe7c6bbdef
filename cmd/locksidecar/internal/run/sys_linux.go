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

// childAttr puts the child into a group of its own and kills it with us.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// sigaction is the kernel's.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     [2]uint64
}

const sigIgn = 1 // SIG_IGN; SIG_DFL is 0

func setAction(sig syscall.Signal, act, old *sigaction) {
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(act)),
		uintptr(unsafe.Pointer(old)), 8, 0, 0)
}

// stopGroup stops the others of our process group, and then us. It goes to the
// kernel by itself, since os/signal never gives a stop signal's own effect back
// once it was notified or ignored. It returns when we run again, which is at once
// if our group is one that the kernel does not stop.
func stopGroup(sig syscall.Signal) {
	var was sigaction
	setAction(sig, &sigaction{handler: sigIgn}, &was)
	_ = syscall.Kill(0, sig)
	setAction(sig, &sigaction{}, nil)
	// A signal to this very thread has taken effect when the call returns.
	runtime.LockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
	runtime.UnlockOSThread()
	setAction(sig, &was, nil)
}

const (
	getModes = unix.TCGETS
	setModes = unix.TCSETSW // after what was written
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
	end := bytes.LastIndexByte(stat, ')') // the name may have anything in it
	f := bytes.Fields(stat[end+1:])
	if len(f) < 3 || f[0][0] == 'Z' || f[0][0] == 'X' {
		return false
	}
	n, err := strconv.Atoi(string(f[2]))
	return err == nil && n == pgid
}
