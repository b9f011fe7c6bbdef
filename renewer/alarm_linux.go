package renewer

import (
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// alarm is a timerfd on CLOCK_BOOTTIME. If its time passes while the machine is suspended, wait
// returns as soon as the machine continues.
type alarm struct{ f *os.File }

func newAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return alarm{}, os.NewSyscallError("timerfd_create", err)
	}
	return alarm{os.NewFile(uintptr(fd), "timerfd")}, nil
}

// set makes wait return at the given time, in nanoseconds of the boot clock.
func (a alarm) set(at int64) {
	at = max(at, 1) // 0 would disarm it
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(at)}
	rc, err := a.f.SyscallConn()
	if err != nil {
		return // closed
	}
	_ = rc.Control(func(fd uintptr) {
		_ = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil)
	})
}

// wait sleeps until the time that was set. It returns false if the alarm has been closed.
func (a alarm) wait() bool {
	var b [8]byte
	_, err := a.f.Read(b[:])
	return err == nil
}

func (a alarm) close() { _ = a.f.Close() }

// Boottime reads CLOCK_BOOTTIME: nanoseconds since the machine started, including the time for
// which it was suspended.
func Boottime() int64 {
	var ts unix.Timespec
	// RawSyscall does not tell the scheduler and takes a third less time. The call never blocks.
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME,
		uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		panic(errno) // the kernel has had it since 2.6.39
	}
	return int64(ts.Sec)*int64(time.Second) + int64(ts.Nsec)
}
