//go:build !race

package sock

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func read(fd int, b []byte) (int, error)  { return call(unix.SYS_READ, fd, b, 0) }
func write(fd int, b []byte) (int, error) { return call(unix.SYS_WRITE, fd, b, 0) }
func peek(fd int, b []byte) (int, error) {
	return call(unix.SYS_RECVFROM, fd, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
}

// call makes a system call on a descriptor that does not block.
func call(nr uintptr, fd int, b []byte, flags uintptr) (int, error) {
	for {
		n, _, e := unix.RawSyscall6(nr, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(len(b)), flags, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}
