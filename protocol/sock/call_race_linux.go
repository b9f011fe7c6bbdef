//go:build race

package sock

import (
	"syscall"
)

// The race detector assumes that a write to a socket happens before the read from it, if package
// syscall does both.

func read(fd int, b []byte) (int, error)  { return again(syscall.Read, fd, b) }
func write(fd int, b []byte) (int, error) { return again(syscall.Write, fd, b) }
func peek(fd int, b []byte) (int, error) {
	return again(func(fd int, b []byte) (int, error) {
		n, _, err := syscall.Recvfrom(fd, b, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return n, err
	}, fd, b)
}

func again(call func(int, []byte) (int, error), fd int, b []byte) (int, error) {
	for {
		n, err := call(fd, b)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}
