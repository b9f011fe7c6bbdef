package faultproxy

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// nap is a timer of the kernel. Go rounds its own timers up to a millisecond when nothing else
// runs.
type nap struct {
	fd int
	f  *os.File // nil if there is none; then sleep uses Go's timers
}

func newNap() nap {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nap{}
	}
	return nap{fd, os.NewFile(uintptr(fd), "timerfd")}
}

// sleep blocks for d, which must be positive.
func (n nap) sleep(d time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if n.f == nil || unix.TimerfdSettime(n.fd, 0, &spec, nil) != nil {
		time.Sleep(d)
		return
	}
	var rung [8]byte
	_, _ = n.f.Read(rung[:])
}

func (n nap) close() {
	if n.f != nil {
		n.f.Close()
	}
}
