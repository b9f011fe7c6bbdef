package sock

import (
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Yield lets all other goroutines run first that are ready or whose sockets are. Go's scheduler
// asks the poller only when no goroutine is ready, or else every ten milliseconds, and then only if
// a thread has nothing else to do. So a goroutine that never waits should call Yield now and then.
// A call takes one or two microseconds.
func Yield() {
	t := turnstiles.take()
	if t == nil { // the process has no descriptors left
		runtime.Gosched()
		return
	}
	t.written = false
	_ = t.raw.Read(t.pass)
	turnstiles.give(t)
	// the goroutines that the poller has made ready together with this one may be queued behind it
	runtime.Gosched()
}

// turnstile is an eventfd that is written to and then waited for. When the poller reports it, the
// poller also reports all other ready descriptors.
type turnstile struct {
	f       *os.File
	raw     syscall.RawConn
	pass    func(fd uintptr) bool
	written bool
}

func newTurnstile() *turnstile {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil
	}
	t := &turnstile{f: os.NewFile(uintptr(fd), "eventfd")}
	if t.raw, err = t.f.SyscallConn(); err != nil {
		_ = t.f.Close()
		return nil
	}
	t.pass = t.through // made once, so that a call does not allocate
	return t
}

// through reports whether the poller has reported the write.
func (t *turnstile) through(fd uintptr) bool {
	var b [8]byte
	if t.written {
		_, err := read(int(fd), b[:])
		return err != unix.EAGAIN
	}
	b[0] = 1 // nonzero in either byte order
	_, err := write(int(fd), b[:])
	t.written = true
	return err != nil
}

// turnstiles has the turnstiles that are not in use.
var turnstiles turnstileList

type turnstileList struct {
	mu   sync.Mutex
	free []*turnstile
}

func (l *turnstileList) take() *turnstile {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.free)
	if n == 0 {
		return newTurnstile()
	}
	t := l.free[n-1]
	l.free = l.free[:n-1]
	return t
}

func (l *turnstileList) give(t *turnstile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, t)
}
