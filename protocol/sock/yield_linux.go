package sock

import (
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Yield lets everybody go first who is ready, or whose socket is. Go's scheduler asks the poller
// what there is to read only once nothing is ready to run, and otherwise each ten milliseconds, if
// no thread has nothing else to do: a goroutine that never waits calls Yield now and then, which
// takes a microsecond or two.
func Yield() {
	t := turnstiles.take()
	if t == nil { // no descriptor is left
		runtime.Gosched()
		return
	}
	t.written = false
	_ = t.raw.Read(t.pass)
	turnstiles.give(t)
	runtime.Gosched() // those whom the poller has told of with us may stand behind us
}

// turnstile is an eventfd that is written to and then waited for: the poller tells of it when it
// tells of all the others.
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
	t.pass = t.through // made once: no allocation a call
	return t
}

// through says whether the poller has told of what has been written.
func (t *turnstile) through(fd uintptr) bool {
	var b [8]byte
	if t.written {
		_, err := read(int(fd), b[:])
		return err != unix.EAGAIN
	}
	b[0] = 1 // in either order of bytes it is not zero
	_, err := write(int(fd), b[:])
	t.written = true
	return err != nil
}

// turnstiles are those that nobody uses.
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
