//go:build !linux

package sock

import (
	"errors"
	"runtime"
	"syscall"
)

// Conn is a net.Conn.
type Conn struct {
	Stream
	raw syscall.RawConn
	dry uint32
}

// New takes the socket of a net.UnixConn or net.TCPConn over.
func New(c Stream) (*Conn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &Conn{Stream: c, raw: raw}, nil
}

// TryWrite writes as much of b as the socket takes now, and does not wait. An error says
// that the connection is of no use any more.
func (s *Conn) TryWrite(b []byte) (n int, err error) {
	err = s.Control(func(fd int) error {
		for n < len(b) {
			m, err := syscall.Write(fd, b[n:])
			n += max(m, 0)
			switch err {
			case nil, syscall.EINTR:
			case syscall.EAGAIN:
				return nil
			default:
				return err
			}
		}
		return nil
	})
	return n, err
}

// Dry is not known: it is another number each time.
func (s *Conn) Dry() uint32 {
	s.dry++
	return s.dry
}

// Yield lets everybody go first who is ready.
func Yield() { runtime.Gosched() }

// Idle returns nil.
func (s *Conn) Idle() error { return nil }

// CloseRead has Read return io.EOF once it has read what is there.
func (s *Conn) CloseRead() error {
	if c, ok := s.Stream.(interface{ CloseRead() error }); ok {
		return c.CloseRead()
	}
	return errors.ErrUnsupported
}

// CloseWrite tells the other side that nothing more will come.
func (s *Conn) CloseWrite() error {
	if c, ok := s.Stream.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Control calls f with the descriptor, which is good until f returns.
func (s *Conn) Control(f func(fd int) error) error {
	var err error
	if cerr := s.raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}
