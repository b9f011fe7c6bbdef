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

// blocking is a socket that is read and written as a thread of any language does:
// the thread itself sleeps in the kernel. Go's poller wakes more threads for each
// message than the message is worth, which would be charged to what is measured.
type blocking struct {
	f  *os.File
	fd uintptr
}

// block takes the socket over from w and ties the calling goroutine to its thread.
// From now on w may be used by this goroutine only.
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
	// A read holds a processor of Go's: it must not do so for ever.
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
