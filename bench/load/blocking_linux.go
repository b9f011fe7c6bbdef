package load

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blocking is a socket that is read and written as in most languages: the thread itself sleeps in
// the kernel. With Go's poller, each message would wake more threads, and their cost would be part
// of the result.
type blocking struct {
	f  *os.File
	fd uintptr
}

// block takes over the socket from w and locks the calling goroutine to its thread. Afterwards only
// this goroutine may use w.
func (w *wire) block() error {
	f, err := w.conn.(*net.UnixConn).File()
	if err != nil {
		return err
	}
	w.conn.Close()
	fd := int(f.Fd())
	if err := unix.SetNonblock(fd, false); err != nil {
		return fmt.Errorf("make socket blocking: %w", err)
	}
	// A read occupies one of Go's processors, so it must not last without limit.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		&unix.Timeval{Usec: 100_000}); err != nil {
		return fmt.Errorf("bound reads: %w", err)
	}
	runtime.LockOSThread()
	w.thread = &blocking{f, uintptr(fd)}
	return nil
}

func (b *blocking) read(ctx context.Context, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, b.fd, uintptr(unsafe.Pointer(&p[0])),
			uintptr(len(p)))
		switch {
		case errno == unix.EAGAIN || errno == unix.EINTR:
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			runtime.Gosched()
		case errno != 0:
			return 0, errno
		case n == 0:
			return 0, io.EOF
		default:
			return int(n), nil
		}
	}
}

func (b *blocking) write(p []byte) error {
	for len(p) > 0 {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, b.fd, uintptr(unsafe.Pointer(&p[0])),
			uintptr(len(p)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return errno
		}
		p = p[n:]
	}
	return nil
}

func (b *blocking) close() error { return b.f.Close() }
