package sock

import (
	"context"
	"errors"
	"net"
	"syscall"
)

// Stream is a net.UnixConn or a net.TCPConn.
type Stream interface {
	net.Conn
	syscall.Conn
}

// Dial connects as d does. It blocks until it has, or ctx ends.
func Dial(ctx context.Context, d *net.Dialer, network, addr string) (*Conn, error) {
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return New(c.(Stream))
}

var errUnread = errors.New("there is something to read that nobody has asked for")
