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

// New takes over the socket of a net.UnixConn or net.TCPConn.
func New(c Stream) (*Conn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &Conn{Stream: c, raw: raw}, nil
}

// TryWrite writes as much of b as the socket accepts now, and does not wait. After an error the
// connection cannot be used any more.
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

// Dry cannot know how often Read has waited, so it returns another number each time.
func (s *Conn) Dry() uint32 {
	s.dry++
	return s.dry
}

// Yield lets all goroutines run that are ready.
func Yield() { runtime.Gosched() }

// Idle always returns nil.
func (s *Conn) Idle() error { return nil }

// CloseRead makes Read return io.EOF after it has read what has arrived.
func (s *Conn) CloseRead() error {
	if c, ok := s.Stream.(interface{ CloseRead() error }); ok {
		return c.CloseRead()
	}
	return errors.ErrUnsupported
}

// CloseWrite tells the other side that nothing more will be sent.
func (s *Conn) CloseWrite() error {
	if c, ok := s.Stream.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Control calls f with the descriptor, which is valid until f returns.
func (s *Conn) Control(f func(fd int) error) error {
	var err error
	if cerr := s.raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}
