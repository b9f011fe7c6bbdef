package sock

import (
	"context"
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Stream is a net.UnixConn or a net.TCPConn.
type Stream interface {
	net.Conn
	syscall.Conn
}

// Dial connects as d does. It blocks until the connection is made or ctx ends.
func Dial(ctx context.Context, d *net.Dialer, network, addr string) (*Conn, error) {
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return New(c.(Stream))
}

// HungUp reports whether the other side has closed a Unix socket, even if there is still something
// to read. It does not block. For a TCP connection it may return false until both sides have closed
// it.
func (s *Conn) HungUp() bool {
	var p [1]unix.PollFd
	err := s.Control(func(fd int) error {
		p[0].Fd = int32(fd)
		_, err := unix.Poll(p[:], 0)
		return err
	})
	return err == nil && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

var errUnread = errors.New("there is something to read that nobody has asked for")
