// Package ports reserves TCP ports for the servers of tests and benchmarks.
//
// It is not safe to let the kernel choose a port (port 0), to close it, and to start a server on
// it. An outgoing connection or another test's server can take the port meanwhile. The caller then
// waits for a server that cannot start, or talks to another test's server.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// All ports are in this range. It lies below the ports that Linux and macOS give to outgoing
// connections.
const first, last = 20000, 32000

// Reserve returns a port of 127.0.0.1 on which nobody listens. No other caller on this machine gets
// it before release is called or this process ends, also not while the caller's server is down.
func Reserve() (port int, release func(), err error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprint("locksidecar-ports-", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, nil, err
	}
	for range 1000 {
		port = first + rand.IntN(last-first)
		// This is not an os.File, which the garbage collector would close for a caller that never
		// calls release.
		fd, err := syscall.Open(filepath.Join(dir, strconv.Itoa(port)),
			syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return 0, nil, err
		}
		if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) == nil && unused(port) {
			return port, func() { _ = syscall.Close(fd) }, nil
		}
		_ = syscall.Close(fd)
	}
	return 0, nil, errors.New("all ports that were tried are in use")
}

func unused(port int) bool {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
